"""A page of shots: film strips that link to the second of the file they are from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from vivi.answers.embeddings import Embeddings, Row
from vivi.answers.footage import Footage, open_footage
from vivi.report.strips import ShownFrame, evenly, keep_thumbnail
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
            time = times[number]
            if isinstance(image, str):
                shown.append(ShownFrame(time))
            else:
                shown.append(keep_thumbnail(time, Image.fromarray(image), self.folder))
        return ShownShot(row, note, shown)

    def copy(self, row: Row, folder: Path) -> Path:
        """Writes a frame as it is into a folder, under a name that says where it is from."""
        content, suffix = self.footage.encoded(self._shots[row.video, row.shot], row.frame)
        stem = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in row.video)[-80:]
        path = folder / f"{row.number:08d}-{stem}-{row.time:.2f}s{suffix}"
        write_atomically(path, content, sync=False)
        return path


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
