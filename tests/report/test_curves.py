"""The curves of runs on the report: what is drawn, and how the page answers to pointing and dragging."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, in_frames
from some_results import report

from vivi.report.curves import MOST_POINTS, curves, run_names
from vivi.runtime.errors import UserError


def a_run(folder: Path, lines: Iterable[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    first = [{"step": step, "loss": 3 - step / 10, "learning_rate": 0.1, "seconds": 1.0} for step in range(1, 21)]
    found = {"retrieval": 0.5, "retrieval_chance": 0.05, "retrieval_queries": 40}
    first += [{"step": 0, **found}, {"step": 20, **found, "retrieval": 0.75}]
    second = [{"step": step, "loss": 2.0, "own_metric": None} for step in range(0, 41, 2)]
    return a_run(tmp_path / "a" / "run", sorted(first, key=lambda line: line["step"])), a_run(tmp_path / "b", second)


def test_a_panel_has_the_lines_of_all_runs_that_measured_it(runs: tuple[Path, Path]) -> None:
    panels = {panel["title"]: panel for panel in curves(runs)}
    assert [*panels] == ["Retrieval", "Total loss", "Learning rate"] and panels["Learning rate"]["folded"]
    first, second = panels["Total loss"]["lines"]
    assert (first["run"], second["run"]) == (0, 1) and second["steps"] == [*range(0, 41, 2)]
    assert first["steps"] == [*range(1, 21)] and first["values"][9] == pytest.approx(2.0)
    [retrieval] = panels["Retrieval"]["lines"]
    assert retrieval == {"run": 0, "steps": [0, 20], "values": [0.5, 0.75], "chance": 0.05, "queries": 40}


def test_long_runs_are_means_of_neighbouring_steps_and_broken_values_are_left_out(tmp_path: Path) -> None:
    count = 3 * MOST_POINTS
    lines = [{"step": step, "loss": step % 3} for step in range(count)]
    odd: list[dict[str, Any]] = [
        {"step": count, "loss": None},
        {"step": count + 1, "loss": "a"},
        {"step": count + 2, "loss": float("inf")},
    ]
    [panel] = curves([a_run(tmp_path / "long", [*lines, *odd])])
    [line] = panel["lines"]
    assert len(line["steps"]) == MOST_POINTS and line["steps"][-1] == count - 1
    assert set(line["values"]) == {1.0}


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    assert run_names([tmp_path / "a/run", tmp_path / "b/run", tmp_path / "c"]) == ["a/run", "b/run", "c"]


def test_runs_alone_make_a_page_and_other_folders_do_not(runs: tuple[Path, Path], tmp_path: Path) -> None:
    def vivi_report(*folders: Path) -> tuple[int, str]:
        command = [sys.executable, "-m", "vivi", "report", *map(str, folders), "--out", str(tmp_path / "page")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr

    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "corpus.json").write_text("{}")
    for folder, words in (
        (tmp_path / "corpus", "is a corpus: vivi inspect"),
        (tmp_path / "a", "there are no results"),
    ):
        code, said = vivi_report(*runs, folder)
        assert code == 1 and words in said and said.count("\n") == 1 and not (tmp_path / "page").exists()
    assert vivi_report(*runs)[0] == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert "How does training go?" in page and "VIVI-Ex(4)" not in page
    with pytest.raises(UserError, match="there is nothing to show"):
        report(None, tmp_path / "nothing")


PROBE = """<script>
addEventListener("load", () => {
  const svg = document.querySelectorAll(".curves .chart")[1], box = svg.getBoundingClientRect();
  const found = { width: innerWidth, panels: document.querySelectorAll(".curves .chart").length };
  const words = () => document.querySelectorAll(".curves figcaption")[1].textContent;
  const labels = () => [...svg.querySelectorAll("text")].map((text) => text.textContent);
  const at = (type, share) => svg.dispatchEvent(new PointerEvent(type, { clientX: box.left + box.width * share,
    clientY: box.top + 20, pointerId: 1, bubbles: true }));
  svg.setPointerCapture = () => {};
  found.lines = svg.querySelectorAll("polyline").length;
  found.last = words();
  found.retrieval = document.querySelector(".curves figcaption").textContent;
  at("pointermove", 46 / 380);
  found.first = words();
  at("pointerdown", 46 / 380); at("pointermove", 0.5); at("pointerup", 0.5); at("pointerleave", 0.5);
  found.zoomed = words();
  found.labels = labels();
  document.querySelector(".runs button").click();
  found.again = words();
  document.querySelector(".runs input").click();
  found.without = svg.querySelectorAll("polyline").length;
  found.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  found.problems = problems;
  parent.postMessage(found, "*");
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_pointing_shows_values_and_dragging_zooms(runs: tuple[Path, Path], tmp_path: Path) -> None:
    page, _ = report(None, tmp_path / "page", runs=runs)
    for found in in_frames(tmp_path / "page", page.html, PROBE, (390, 1400)):
        assert found["problems"] == [] and found["overflow"] == 0
        assert found["panels"] == 3 and found["lines"] == 2 and found["without"] == 1
        assert found["last"] == found["again"] == "step 401 at step 202"
        assert found["retrieval"] == "step 400.75 (30 of 40, by chance 2.0) at step 20"
        assert found["first"] == "step 02.9 at step 12"
        assert found["zoomed"] == "step 171.32 at step 16" and "40" not in found["labels"]
