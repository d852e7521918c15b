"""Robustness in the report: its table against the curves themselves, the paper's rows, the figure, the pictures."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, Page, in_frames
from PIL import Image
from some_results import HOSTILE, a_picture, a_result, a_robust_result, report, table

from vivi.evaluate.results import RobustResult, write_result
from vivi.evaluate.vid_robust.scores import Anchor, curve
from vivi.report.figures import MARKERS, MAX_LINES, draw_curves
from vivi.report.paper import paper_rows
from vivi.report.robust import in_order, is_papers

VID = "imagenet-vid-robust"


def on_papers_set(encoder: str, accuracy: float, name: str = VID, **others: Any) -> RobustResult:
    return replace(a_robust_result(encoder, accuracy, name, 1109, **others), frames=22179)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("robust") / "results"
    for result in (
        on_papers_set("strong", 0.9, picture="strong.png"),
        on_papers_set("holes", 0.7, missing=30, picture="nowhere.png", notes=("<i>x.jpg: empty",)),
        a_robust_result(HOSTILE, 0.4, VID, 200, picture="damaged.png"),
        a_robust_result("strong", 0.8, "coil & co", 60, farthest=4, picture="strong.png"),
    ):
        write_result(folder, result)
    a_picture(folder / "strong.png")
    (folder / "damaged.png").write_bytes((folder / "strong.png").read_bytes()[:200])
    return folder


@pytest.fixture(scope="module")
def printed(results: Path) -> tuple[Page, str]:
    return report(results, results.parent / "page")


def test_a_page_of_robustness_alone(results: Path, printed: tuple[Page, str]) -> None:
    page, said = printed
    assert "How robust are they?" in page.text and "3 models on 2 sets of neighbouring frames" in page.text
    assert "There are no results" not in page.text and "Best PM-10" in page.text
    assert HOSTILE in page.text and page.tags.count("script") == 2
    for file, reason in (("nowhere.png", "No such file"), ("damaged.png", "it is damaged, or no PNG")):
        assert file in said and f"({file}): {reason}" in page.text
    assert said.count("\n") == 2 and "<i>x.jpg: empty" in page.text
    folder = results.parent / "page"
    linked = page.files() | {value for key, value in page.attributes if key == "srcset"}
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == linked | {"index.html"}
    copies = sorted((folder / "pictures").iterdir())
    assert len(copies) == 2 and all(path.read_bytes() == (results / "strong.png").read_bytes() for path in copies)
    assert page.html.count("<summary><bdi>strong on ") == 2


def test_rows_have_both_scores_where_frames_are_missing(results: Path, printed: tuple[Page, str]) -> None:
    lines = table(results.parent / "page/tables/robust.csv")
    assert [(line["model"], line["over"], line["k"]) for line in lines if line["source"] == "ours"] == [
        ("strong", "all anchors", "10"),
        ("holes", "anchors with all frames", "10"),
        ("holes", "missing frames as wrong", "10"),
        (HOSTILE, "all anchors", "10"),
        ("strong", "all anchors", "4"),
    ]
    found = on_papers_set("holes", 0.7, missing=30).curve
    for line, scores in ((lines[1], found.complete), (lines[2], found.strict)):
        first, last = scores[0], scores[-1]
        assert float(line["anchor_accuracy"]) == pytest.approx(100 * first.right / first.n, abs=1e-3)
        assert float(line["pm_accuracy"]) == pytest.approx(100 * last.right / last.n, abs=1e-3)
        assert float(line["pm_accuracy_low"]) == pytest.approx(100 * last.low, abs=1e-3)
        assert float(line["pm_accuracy_high"]) == pytest.approx(100 * last.high, abs=1e-3)
        drop = 100 * (first.right / first.n - last.right / last.n)
        if first.n == last.n:
            assert float(line["drop"]) == pytest.approx(drop, abs=2e-4)
        else:  # of different anchors there is none
            assert line["drop"] == ""
        assert line["missing_frames"] == "30" and line["anchors"] == "1109"
    assert (lines[1]["pm_accuracy_anchors"], lines[2]["pm_accuracy_anchors"]) == ("1079", "1109")
    curves = table(results.parent / "page/tables/robust-curves.csv")
    assert len(curves) == 4 * 11 + 5
    assert [int(line["right"]) for line in curves if line["over"] == "missing frames as wrong"] == [
        interval.right for interval in found.strict
    ]
    text = (results.parent / "page/tables/robust.md").read_text()
    assert f"| holes (anchors with all frames) | {VID}, k = 10 |" in text and "1,079 of 1,109 | 30 frames |" in text
    assert "(paper) | ImageNet-Vid-Robust, k = 10 | 68.0 \\[65.2, 70.7\\] | 49.9 \\[46.9, 52.9\\] | 18.1" in text


def test_only_scores_over_all_anchors_of_a_set_are_compared(results: Path, printed: tuple[Page, str]) -> None:
    section = printed[0].html[printed[0].html.index('id="robust"') : printed[0].html.index("In the paper")]
    rows = [row for row in section.split("<tr>") if 'class="best"' in row]
    assert len(rows) == 1 and "strong" in rows[0] and VID in rows[0] and rows[0].count('class="best"') == 2
    assert "Only rows over all anchors can be bold." in printed[0].text


def test_the_papers_rows_are_shown_once(results: Path, printed: tuple[Page, str], tmp_path: Path) -> None:
    page, _ = printed
    assert page.text.count("[46.9, 52.9]") == 1
    assert "The paper’s rows are over 1,109 anchors, with k = 10: others differ." in page.text
    assert page.html.index("In the paper") > page.html.index('id="robust"') and "RetinaNet" in page.text
    page, _ = report(results, tmp_path / "without", paper=False)
    assert "52.9" not in page.html and "paper" not in page.text
    own = tmp_path / "own"
    write_result(own, a_robust_result("a", 0.5, "my frames", farthest=2))
    write_result(own, a_robust_result("a", 0.5, VID))  # the name alone says nothing
    page, _ = report(own, tmp_path / "own page")
    assert page.text.count("49.9 [46.9, 52.9]") == 1 and "In the paper" not in page.html.split('id="paper"')[0]


def test_the_papers_set_is_known_by_its_frames_and_the_farthest_come_first() -> None:
    near = [a_robust_result(name, accuracy, "b", farthest=2) for name, accuracy in (("a", 0.99), ("d", 0.9))]
    far = a_robust_result("z", 0.2, "b")
    papers = on_papers_set("p", 0.1, "c")
    order = in_order([*near, far, papers, a_robust_result("q", 0.9, "c", farthest=5)])
    assert [(one.set, one.encoder) for one in order] == [("c", "p"), ("c", "q"), ("b", "z"), ("b", "a"), ("b", "d")]
    assert [is_papers(one) for one in order] == [True, False, False, False, False]


def test_the_figure_of_each_set(results: Path, printed: tuple[Page, str]) -> None:
    page = printed[0]
    figures = results.parent / "page/figures"
    names = sorted(path.name for path in figures.glob("robust-*"))
    assert names == [
        f"robust-{name}{kind}"
        for name in ("1-imagenet-vid-robust", "2-coil-co")
        for kind in ("-narrow.svg", ".png", ".svg")
    ]
    for name in names[1::3]:
        with Image.open(figures / name) as image:
            assert image.convert("RGB").getpixel((2, 2)) == (255, 255, 255)
            assert len(np.unique(np.asarray(image.convert("L"))[::3, ::3])) > 50
    alt = next(value for key, value in page.attributes if key == "alt" and value.startswith("Curves"))
    strict = on_papers_set("strong", 0.9).curve.strict
    assert f"strong from {100 * strict[0].share:.1f} to {100 * strict[-1].share:.1f};" in alt
    assert "dotted, with missing frames as wrong" in page.text and "the paper’s two numbers" in page.text


def test_the_best_of_the_curves_lies_on_top(tmp_path: Path) -> None:
    best, same = a_robust_result("a", 0.5), a_robust_result("b", 0.5)
    assert best.curve == same.curve
    picture = draw_curves([best, same], [], tmp_path / "two")
    assert picture
    with Image.open(tmp_path / f"{picture.name}.png") as image:
        pixels = np.asarray(image.convert("RGB"))[image.height // 3 :]  # below the legend
    blue, orange = ((pixels == colour).all(axis=2).sum() for colour in ((0, 114, 178), (213, 94, 0)))
    assert blue > 1000 and 0 < orange < 0.1 * blue  # the other's markers look out behind
    assert len(set(MARKERS)) == len(MARKERS) == MAX_LINES


def test_a_crowd_of_models_and_odd_names_can_be_drawn(tmp_path: Path) -> None:
    names = [f"_{number} $\\frac$ 日本 " + "x" * 200 for number in range(10)]
    picture = draw_curves(
        [a_robust_result(name, 0.5) for name in names], paper_rows("vid_robust"), tmp_path / "crowd"
    )
    assert picture and "Not drawn: 4 of the rows above." in picture.caption and picture.width > picture.height


def test_sets_without_neighbours_and_without_any_frame(tmp_path: Path) -> None:
    """YTBB-Robust's anchors come without neighbours; and all frames of a set may be missing."""
    results = tmp_path / "results"
    write_result(results, a_robust_result("alone", 0.5, "ytbb", farthest=0))
    anchors = [Anchor("a", (("b", 1),))]
    write_result(results, RobustResult("blind", "nothing", curve(anchors, {}, 1), 1, 2, 3, None))
    some = [Anchor("a", (("b", 1),)), Anchor("c", ())]
    write_result(results, RobustResult("half", "more", curve(some, {"c": True}, 1), 2, 3, 3, None))
    page, _ = report(results, tmp_path / "page", paper=False)
    assert "of 0 anchors" in page.text and "2 frames" in page.text
    assert "of 1 anchor" in page.text and "of 1 anchors" not in page.text
    lines = table(tmp_path / "page/tables/robust.csv")
    assert [(line["model"], line["pm_accuracy"], line["drop"]) for line in lines] == [
        ("half", "100", "0"),
        ("half", "50", "0"),
        ("blind", "", ""),
        ("blind", "0", "0"),
        ("alone", "", ""),
    ]
    assert [path.name for path in (tmp_path / "page/figures").glob("*ytbb*")] == []


def test_doubles_are_said_and_nothing_stale_is_left(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "page"
    first = write_result(results, a_robust_result("vivi", 0.5, picture="vivi.png"))
    second = write_result(results, a_robust_result("other", 0.6, data_checksum="b", reduction="mean"))
    write_result(results, a_robust_result("own", 0.6, "others"))
    write_result(results, a_robust_result("its", 0.6, "others", reduction=None))  # nothing to reduce
    write_result(results, a_result("vivi", "dtd", [0.5]))
    a_picture(results / "vivi.png")
    (results / "twice.json").write_text(first.read_text())
    page, said = report(results, out, paper=False)
    assert "vivi on frames (vid-robust) is there twice; the first file by name counts" in said
    assert "On frames, the models were not tested on the same frames." in page.text
    assert "On frames, outputs were reduced to the set’s classes in different ways." in page.text
    assert "On others, " not in page.text
    assert "How well do they transfer?" in page.text and "4 models on 2 sets" in page.text
    (out / "pictures/mine.png").write_bytes(b"1")
    for path in (first, second, results / "twice.json", *results.glob("*others.json")):
        path.unlink()
    page, _ = report(results, out, paper=False)
    left = [path.name for folder in ("tables", "figures", "pictures") for path in (out / folder).iterdir()]
    assert 'id="robust"' not in page.html and [name for name in left if not name.startswith("vtab")] == ["mine.png"]


def test_a_picture_is_never_taken_from_elsewhere(tmp_path: Path) -> None:
    results = tmp_path / "results"
    a_picture(tmp_path / "secret.png")
    write_result(results, a_robust_result("sly", 0.5, picture="../secret.png"))
    page, said = report(results, tmp_path / "page", paper=False)
    assert "it is not beside its result" in said and not (tmp_path / "page/pictures").exists()
    assert "<img" in page.html and "secret.png" not in "".join(page.files())


PROBE = """<script>
addEventListener("load", () => {
  const root = document.documentElement;
  document.querySelectorAll("details").forEach((details) => { details.open = true; });
  document.querySelectorAll("img").forEach((image) => { image.loading = "eager"; });
  setTimeout(() => parent.postMessage({
    width: innerWidth, overflow: root.scrollWidth - root.clientWidth, problems, images: document.images.length,
    broken: [...document.images].filter((image) => !image.naturalWidth).length,
  }, "*"), 500);
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_in_a_browser(printed: tuple[Page, str], results: Path, tmp_path: Path) -> None:
    """On a phone and a large screen nothing sticks out, and every picture is shown."""
    shutil.copytree(results.parent / "page", tmp_path / "page")
    for found in in_frames(tmp_path / "page", printed[0].html, PROBE, (390, 1600)):
        assert found["problems"] == [] and found["overflow"] == 0
        assert found["images"] == 2 + 2 + 2 * 3 and found["broken"] == 0
