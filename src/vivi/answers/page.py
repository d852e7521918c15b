"""A page of shots: film strips that link to the second of the file they are from."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import numpy as np
from PIL import Image as Pillow

from vivi.answers.embeddings import Embeddings, Row
from vivi.answers.footage import Footage, open_footage
from vivi.data.packed import Image
from vivi.report.strips import THUMBNAIL_QUALITY, THUMBNAIL_SIZE, ShownFrame, evenly
from vivi.report.writing import check_free, unwritable_named, write_html
from vivi.runtime.errors import UserError
from vivi.runtime.storage import write_atomically

FRAMES = 5  # of a shot


@dataclass(frozen=True)
class ShownShot:
    """A shot on a page: where it is from, what is said of it, and some of its frames."""

    row: Row
    note: str
    frames: Sequence[ShownFrame]

    @property
    def link(self) -> str:
        """The file, at the second."""
        return f"file://{quote(self.row.path)}" + (f"#t={self.row.time:.2f}" if self.row.time else "")


@dataclass(frozen=True)
class Section:
    """Shots that belong together, under a heading."""

    title: str
    intro: str
    shots: Sequence[ShownShot]


class Frames:
    """The frames that a page of embedded footage shows, as small JPEG files in the folder `out`/frames."""

    def __init__(self, footage: Footage, out: Path) -> None:
        self.footage, self.folder = footage, out / "frames"
        with unwritable_named(out):
            self.folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def _shots(self) -> dict[tuple[str, int], int]:
        return {self.footage.video(shot): shot for shot in range(len(self.footage.frames))}

    def show(self, row: Row, note: str = "", frames: int = FRAMES) -> ShownShot:
        """A shot by one of its frames, or only that frame."""
        shot = self._shots[row.video, row.shot]
        numbers = [row.frame] if frames == 1 else evenly(int(self.footage.frames[shot]), frames)
        times = self.footage.times(shot)
        shown = []
        for number, image in zip(numbers, self.footage.read(shot, numbers), strict=True):
            shown.append(ShownFrame(times[number]) if isinstance(image, str) else self._write(times[number], image))
        return ShownShot(row, note, shown)

    def _write(self, time: float, image: Image) -> ShownFrame:
        small = Pillow.fromarray(np.asarray(image))
        small.thumbnail(THUMBNAIL_SIZE, Pillow.Resampling.BOX)
        content = io.BytesIO()
        small.save(content, "JPEG", quality=THUMBNAIL_QUALITY, optimize=True)
        name = f"vivi-{hashlib.sha256(content.getvalue()).hexdigest()[:20]}.jpg"
        write_atomically(self.folder / name, content.getvalue(), sync=False)
        return ShownFrame(time, name, small.width, small.height)


def open_shown(embeddings: Embeddings, out: Path) -> Frames:
    """The frames of embedded footage; raises where it is gone, or has changed since."""
    about = embeddings.about
    footage = open_footage(Path(about.footage))
    if footage.fingerprint != about.fingerprint:
        raise UserError(f"{about.footage} has changed since it was embedded; run vivi embed again with another --out")
    return Frames(footage, out)


def write_shots_page(out: Path, command: str, title: str, intro: str, sections: Iterable[Section]) -> Path:
    """Writes the page into the folder `out`, and returns its index.html."""
    index = check_free(out, command)
    with unwritable_named(out):
        write_html(index, "shots.html", command=command, title=title, intro=intro, sections=[*sections])
    return index
