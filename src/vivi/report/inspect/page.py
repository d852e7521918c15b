"""vivi inspect: a page that shows a corpus, to be opened from the disk without a server or a network.

    corpus ──▶ numbers, sampled film strips (content) ──▶ HTML (html) ──▶ out/index.html, out/frames/

Thumbnails are named by their content, so a new page never changes a picture the old one shows: index.html is replaced
in one step, and the thumbnails it no longer refers to are removed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from vivi.prepare.corpus import Corpus
from vivi.report.folders import check_free, unwritable_named
from vivi.report.inspect.content import THUMBNAIL_PREFIX, Strip, choose_videos, film_strip, overview
from vivi.report.inspect.html import render
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.storage import write_atomically


def write_page(corpus: Path, out: Path, videos: int = 24, seed: int = 0) -> Path:
    """Writes the page of a corpus into the folder `out` and returns its index.html.

    `videos` of its videos are shown as film strips; another `seed` shows others.
    """
    for flag, value in (("--videos", videos), ("--seed", seed)):
        if value < 0:
            raise UserError(f"{flag} is {value}; it must be 0 or more")
    opened = Corpus(corpus)
    index = check_free(out, "vivi inspect")
    frames = out / "frames"
    with damaged_shards_named(opened):
        numbers = overview(opened)
        chosen = choose_videos(opened.videos, videos, seed)
    with unwritable_named(out):
        frames.mkdir(parents=True, exist_ok=True)
        with damaged_shards_named(opened):
            strips = [film_strip(opened, row, frames) for row in chosen]
            page = render(numbers, strips).encode("utf-8", "replace")
        write_atomically(index, page)
        remove_stale_thumbnails(frames, strips)
    return index


def remove_stale_thumbnails(frames: Path, strips: list[Strip]) -> None:
    """Removes the thumbnails of an earlier page; what others put into the folder stays."""
    wanted = {frame.thumbnail.file for strip in strips for frame in strip.frames() if frame.thumbnail}
    for path in frames.glob(f"{THUMBNAIL_PREFIX}*.jpg"):
        if path.name not in wanted:
            path.unlink(missing_ok=True)


@contextmanager
def damaged_shards_named(corpus: Corpus) -> Iterator[None]:
    """Turns what damage leads to that was not noticed before into one line."""
    try:
        yield
    except (pa.ArrowException, LookupError, ValueError, TypeError, ArithmeticError, StopIteration) as error:
        what = first_line(error)
        raise UserError(
            f"{corpus.path} cannot be shown ({what}); vivi inspect {corpus.path} --verify says what is wrong with it"
        ) from None
