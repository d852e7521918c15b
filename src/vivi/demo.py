"""vivi demo: the whole flow on synthesized videos."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path

from rich.console import Console

from vivi.inspect.page import write_page
from vivi.synthetic.synthesize import SynthesizeSettings, synthesize
from vivi.video.piece import PrepareSettings
from vivi.video.prepare import prepare
from vivi.video.statistics import print_summary


def demo(out: Path, videos: int, console: Console) -> None:
    """Synthesizes videos, prepares them, and shows the corpus on a page; a second run reuses what is there."""
    console.rule(f"1  synthesize {videos} videos")
    synthesize(out / "videos", SynthesizeSettings(videos=videos, tasks=False))
    console.rule("2  prepare: decode, find shots, write the corpus")
    prepare([out / "videos"], out / "corpus", PrepareSettings(rate=5.0), console=console)
    print_summary(out / "corpus", console)
    console.rule("3  inspect: a page to open")
    page = write_page(out / "corpus", out / "page").resolve()
    console.print(f"open {page}", soft_wrap=True)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(page.as_uri())
