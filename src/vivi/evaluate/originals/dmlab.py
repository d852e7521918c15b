"""DMLab: TFRecord files of frames from DeepMind Lab, as the original archive has them and as TFDS writes them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivi.evaluate.examples import Examples, Original
from vivi.evaluate.originals.source import Source, damaged
from vivi.evaluate.originals.tfrecord import Damaged, bytes_span, features, integer, records
from vivi.runtime.errors import UserError
from vivi.runtime.image_files import as_rgb, open_image

_SPLITS = ("train", "validation", "test")
_CLASSES = 6


@dataclass(frozen=True, eq=False)
class Frames(Sequence[Tensor]):
    """Encoded images inside files, decoded when asked for; no file stays open, so that threads do not meet."""

    files: tuple[Path, ...]
    spans: NDArray[np.int64]
    """For each image: which file, its first byte there, its length."""

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        file, start, length = (int(number) for number in self.spans[index])
        path = self.files[file]
        try:
            with path.open("rb") as opened:
                opened.seek(start)
                data = opened.read(length)
            with open_image(io.BytesIO(data)) as image:
                pixels = np.array(as_rgb(image))
        except (OSError, ValueError) as error:
            raise damaged(path, f"the image at byte {start}: {error}") from None
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def read(folder: Path) -> Original:
    return Original(*(_read_split(folder, split) for split in _SPLITS))


def _read_split(folder: Path, split: str) -> Examples:
    files = tuple(path for path in sorted(folder.glob(f"dmlab-{split}.tfrecord*")) if path.is_file())
    _check_all_there(files)
    spans: list[tuple[int, int, int]] = []
    labels: list[int] = []
    for number, path in enumerate(files):
        try:
            for start, message in records(path):
                label, first, length = _find(message)
                labels.append(label)
                spans.append((number, start + first, length))
        except Damaged as error:
            raise damaged(path, error) from None
    if not labels:
        raise UserError(f"{folder} has no examples in dmlab-{split}.tfrecord*; download them again")
    return Examples(Frames(files, np.array(spans, dtype=np.int64)), torch.tensor(labels))


def _check_all_there(files: Sequence[Path]) -> None:
    """Raises if one of several, name-00000-of-00010 and so on, is missing."""
    for path in files:
        name, _, total = path.name.rpartition("-of-")
        if name and total.isdecimal():
            stem = name.rpartition("-")[0]
            for number in range(int(total)):
                wanted = path.with_name(f"{stem}-{number:0{len(total)}d}-of-{total}")
                if wanted not in files:
                    raise UserError(f"{wanted} is missing though {path.name} is there; download the data set again")
            return


def _find(message: bytes) -> tuple[int, int, int]:
    """The label of an example, and where in it its encoded image begins and how long that is."""
    found = features(message)
    for name in ("image", "label"):
        if name not in found:
            raise Damaged(f"an example has no {name}")
    label = integer(message, found["label"])
    if not 0 <= label < _CLASSES:
        raise Damaged(f"an example has the label {label}, not 0 to {_CLASSES - 1}")
    start, end = bytes_span(message, found["image"])
    return label, start, end - start


DMLAB = Source(
    folders=("dmlab/2.0.1", "dmlab"),
    needs=tuple(f"dmlab-{split}.tfrecord*" for split in _SPLITS),
    where="https://storage.googleapis.com/dmlab-vtab/dmlab.tar.gz",
    read=read,
    count=None,  # the labels lie among gigabytes of images
)
