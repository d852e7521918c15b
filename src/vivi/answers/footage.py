"""What is embedded, labelled and shown: shots of a corpus, or image files, each a shot of one frame."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from vivi.data.decode import decode_frame, read_image
from vivi.data.images import LabelledImages, find_images
from vivi.data.index import Index, open_index, read_frames
from vivi.data.packed import Image
from vivi.prepare.corpus import Corpus, open_shard, shard_path
from vivi.prepare.places import videos_by_place
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import LARGE, read_file

PLACE = pa.schema({"video": pa.string(), "shot": pa.int32(), "frame": pa.int32(), "time": pa.float64()})
"""Where a frame is from. Images have their names as videos; all their numbers are 0."""


class Footage(ABC):
    """Shots, numbered through in the order of the names of their videos."""

    path: Path  # absolute
    fingerprint: str  # changes with what it holds
    frames: NDArray[np.int32]  # (shots,): how many each has

    @abstractmethod
    def read(self, shot: int, numbers: Sequence[int]) -> list[Image | str]:
        """Some frames of a shot; in the place of a damaged one, why it cannot be read. From any thread."""

    @abstractmethod
    def encoded(self, shot: int, number: int) -> tuple[bytes, str]:
        """The image file of a frame as it is, and the suffix of such files."""

    @abstractmethod
    def times(self, shot: int) -> Sequence[float]:
        """The time of each frame of a shot, in seconds."""

    @abstractmethod
    def video(self, shot: int) -> tuple[str, int]:
        """The name of its video, and the number of the shot in it."""

    @abstractmethod
    def file(self, video: str) -> str:
        """The path of the file that a video was made from."""


class CorpusFootage(Footage):
    """The shots of a corpus, held-out videos too."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus, self.path = corpus, corpus.path.resolve()
        self.index: Index = open_index(corpus)
        self.fingerprint, self.frames = self.index.fingerprint, self.index.frames
        if not len(self.frames):
            raise UserError(f"{corpus.path} holds no shots; see why with vivi inspect {corpus.path}")
        self.times_of_shard = lru_cache(maxsize=4)(self._times_of_shard)

    def read(self, shot: int, numbers: Sequence[int]) -> list[Image | str]:
        images: list[Image | str] = []
        for jpeg in read_frames(self.index, self._video(shot), shot, numbers):
            try:
                images.append(decode_frame(jpeg))
            except ValueError as error:
                images.append(first_line(error))
        return images

    def encoded(self, shot: int, number: int) -> tuple[bytes, str]:
        return bytes(read_frames(self.index, self._video(shot), shot, [number])[0]), ".jpg"

    def times(self, shot: int) -> Sequence[float]:
        video = self._video(shot)
        row = self._rows[self.index.video_name(video)] + shot - int(self.index.first_shot[video])
        times: Sequence[float] = self.times_of_shard(int(self.index.shard[video]))[row].as_py()
        return times

    def video(self, shot: int) -> tuple[str, int]:
        video = self._video(shot)
        return self.index.video_name(video), shot - int(self.index.first_shot[video])

    def file(self, video: str) -> str:
        return self._files[video]

    def _video(self, shot: int) -> int:
        """The number of a shot's video."""
        return int(np.searchsorted(self.index.first_shot, shot, side="right")) - 1

    def _times_of_shard(self, number: int) -> pa.ChunkedArray:
        return open_shard(shard_path(self.corpus.path, number), ["times"]).read_all()["times"]

    @cached_property
    def _rows(self) -> dict[str, int]:
        """The first row of each video in its shard."""
        videos = videos_by_place(self.corpus)
        return dict(zip(videos["video"].to_pylist(), videos["first_row"].to_pylist(), strict=True))

    @cached_property
    def _files(self) -> dict[str, str]:
        videos = self.corpus.videos.filter(pc.equal(self.corpus.videos["status"], "ok"))
        return dict(zip(videos["video"].to_pylist(), videos["path"].to_pylist(), strict=True))


class ImageFootage(Footage):
    """Image files, found in a folder or named in a list."""

    def __init__(self, images: LabelledImages) -> None:
        self.images, self.path = images, images.source.resolve()
        self.fingerprint, self.frames = images.fingerprint(), np.ones(len(images), np.int32)

    def read(self, shot: int, numbers: Sequence[int]) -> list[Image | str]:
        try:
            return [read_image(self.images.path(shot), reduce=False)]  # as vivi evaluate reads them
        except (OSError, ValueError) as error:
            return [first_line(error)]

    def encoded(self, shot: int, number: int) -> tuple[bytes, str]:
        path = self.images.path(shot)
        return read_file(path, LARGE), path.suffix.lower()

    def times(self, shot: int) -> Sequence[float]:
        return [0.0]

    def video(self, shot: int) -> tuple[str, int]:
        return self.images.names[shot], 0

    def file(self, video: str) -> str:
        return str(self.images.root.resolve() / video)


def open_footage(source: Path) -> Footage:
    """A corpus, or images in a folder or in a list."""
    if (source / "corpus.json").is_file():
        return CorpusFootage(Corpus(source))
    if not source.exists():
        raise UserError(f"{source} does not exist; give a corpus of vivi prepare, or a folder or a list of images")
    return ImageFootage(find_images(source, labels=False))
