"""vivi demo: the whole flow on synthesized videos."""

from __future__ import annotations

import os
import webbrowser
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vivi.errors import UserError
from vivi.inspect.page import write_page
from vivi.recipes import RECIPES
from vivi.synthetic.synthesize import SynthesizeSettings, synthesize
from vivi.training.machine import Machine
from vivi.training.metrics import read_metrics
from vivi.training.train import train
from vivi.video.piece import PrepareSettings
from vivi.video.prepare import prepare
from vivi.video.statistics import print_summary


def demo(out: Path, videos: int, steps: int, console: Console) -> None:
    """Synthesizes videos, prepares them, shows the corpus on a page and trains on it; what is there is reused."""
    if videos < 24:
        raise UserError(f"--videos is {videos}; a batch takes 16 of the training videos, so ask for 24 at least")
    console.rule(f"1  synthesize {videos} videos")
    synthesize(out / "videos", SynthesizeSettings(videos=videos, tasks=False))
    console.rule("2  prepare: decode, find shots, write the corpus")
    settings = PrepareSettings(rate=5.0, short_side=96, test_fraction=0.2)
    prepare([out / "videos"], out / "corpus", settings, console=console)
    print_summary(out / "corpus", console)
    console.rule("3  inspect: a page that shows the corpus")
    page = write_page(out / "corpus", out / "page").resolve()
    console.print(f"open {page}", soft_wrap=True)
    console.rule("4  train: learn from frames, shots and videos")
    recipe = replace(RECIPES["vivi-ex4-tiny"], steps=steps)
    train(recipe, out / "corpus", out / "run", Machine(monitor_every=20), console)
    _show_result(out / "run", console)
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(page.as_uri())


def _show_result(run: Path, console: Console) -> None:
    """What changed from the untrained encoder to the trained one."""
    found = [line["retrieval"] for line in read_metrics(run) if "retrieval" in line]
    console.print(
        f"a held-out frame finds another shot of its video: {found[0]:.0%} of the time before training, "
        f"{found[-1]:.0%} after",
        soft_wrap=True,
    )
    console.print(
        f"what the encoder saw: {run / 'augmented.png'}; how it learned: {run / 'curves.png'}", soft_wrap=True
    )
