"""Detection in the report: its table against the runs themselves, the paper's rows, schedules, the pictures."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Page
from some_results import HOSTILE, a_detection_result, a_picture, a_robust_result, report, table

from vivi.evaluate.results import DetectionResult, write_result
from vivi.report.table import markdown_escaped


def some_detections() -> list[DetectionResult]:
    halved = a_detection_result("vivi", (0.331, 0.338, 0.30), "COCO 2017", 5000, settings={"steps": 90000})
    first, *others = halved.runs
    halved = replace(halved, runs=(replace(first, lr=0.005, restarts=("<b>the loss rose",)), *others))
    return [
        halved,
        a_detection_result(
            "untrained", (0.2, 0.22, 0.21), "COCO 2017", 5000, picture="found.png", settings={"steps": 90000}
        ),
        a_detection_result("vivi", (0.9,), "COCO 2017", 5000, schedule="short"),
        a_detection_result(HOSTILE, (0.5, 0.6), schedule="short", notes=("2 boxes <u>without area",)),
        a_detection_result("untrained", (0.4,), schedule="own", picture="gone.png"),
    ]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("detection") / "results"
    for result in some_detections():
        write_result(folder, result)
    a_picture(folder / "found.png")
    return folder


@pytest.fixture(scope="module")
def printed(results: Path) -> tuple[Page, str]:
    return report(results, results.parent / "page")


def test_the_table_has_medians_ranges_and_learning_rates(results: Path, printed: tuple[Page, str]) -> None:
    tables = results.parent / "page/tables"
    lines = table(tables / "detection.csv")
    ours = [line for line in lines if line["source"] == "ours"]
    order = [("vivi", "standard"), ("untrained", "standard"), ("vivi", "short"), ("untrained", "own")]
    assert [(line["encoder"], line["schedule"]) for line in ours] == [*order, (HOSTILE, "short")]
    for line in ours:
        [result] = [r for r in some_detections() if (r.encoder, r.schedule) == (line["encoder"], line["schedule"])]
        for part in ("ap", "ap50", "ap75", "medium", "large"):
            runs = [100 * getattr(run.precision, part) for run in result.runs]
            assert float(line[part]) == pytest.approx(statistics.median(runs), abs=1e-3)
            assert float(line[f"{part}_lowest_run"]) == pytest.approx(min(runs), abs=1e-3)
            assert float(line[f"{part}_highest_run"]) == pytest.approx(max(runs), abs=1e-3)
        assert line["small"] == "" and int(line["runs"]) == len(result.runs)
    assert (ours[0]["lr"], ours[0]["restarts"]) == ("0.005 0.01 0.01", "1 0 0")
    text = (tables / "detection.md").read_text()
    assert (
        "| vivi | COCO 2017 | **33.1** |" in text and f"| {markdown_escaped(HOSTILE)} | cells, short schedule" in text
    )
    assert r"vivi & COCO 2017 & \textbf{33.1}" in (tables / "detection.tex").read_text()


def test_a_page_of_detection_alone(results: Path, printed: tuple[Page, str]) -> None:
    page, said = printed
    folder = results.parent / "page"
    assert "How well do they detect?" in page.text and "3 encoders as backbones of detectors, on 2 sets" in page.text
    assert "Best AP" in page.text and "There are no results" not in page.text
    assert HOSTILE in page.text and page.tags.count("script") == 2 and "2 boxes <u>without area" in page.text
    titles = [value for key, value in page.attributes if key == "title"]
    assert "runs: 33.1, 33.8, 30.0; from 30.0 to 33.8" in titles and "seed 0: <b>the loss rose" in titles
    assert "steps 90000" in titles and "halved 0–1×" in page.text and "0.005–0.01" in page.text
    assert "the picture of untrained on cells, own schedule (gone.png): No such file or directory" in said
    assert "Detections, untrained on COCO 2017" in page.text.replace(" ,", ",")
    assert [path.name for path in (folder / "pictures").iterdir()] == ["detection-2-untrained-on-coco-2017.png"]
    assert all((folder / file).is_file() for file in page.files())


def test_other_schedules_are_marked_and_compared_among_themselves(results: Path, printed: tuple[Page, str]) -> None:
    page, _ = printed
    assert "can be compared with rows of the same settings, not with the paper" in page.text
    section = page.html[page.html.index('id="detection"') : page.html.index("In the paper")]
    assert section.count('<span class="badge">short</span>') == 2 and section.count('<span class="badge">own') == 1
    assert section.count('class="best"') == 5  # of the two by the standard schedule; no object is small
    assert "not to be compared with the paper" in (results.parent / "page/tables/detection.md").read_text()


def test_the_papers_rows_are_shown_once(results: Path, printed: tuple[Page, str], tmp_path: Path) -> None:
    page, _ = printed
    row = "VIVI-Ex(4)-Co(100%) COCO 2017 standard 36.5"
    assert page.text.count(row) == 1 and page.text.count("Random init. COCO 2017 standard 26.9") == 1
    assert "RetinaNet on COCO 2017" not in page.text and "Clopper" in page.text
    page, _ = report(results, tmp_path / "without", paper=False)
    assert row not in page.text and "In the paper" not in page.text
    small = tmp_path / "small"
    write_result(small, a_detection_result("a", (0.3,), "coco128", 128))
    page, _ = report(small, tmp_path / "small page")
    assert row not in page.text and page.text.count("RetinaNet on COCO 2017") == 1
    assert "of one run" in page.text and "Other schedules" not in page.text


def test_doubles_are_said_and_nothing_stale_is_left(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "page"
    path = write_result(results, a_detection_result("vivi", (0.3,), picture="vivi.png"))
    other = write_result(results, a_detection_result("other", (0.4,), data_checksum="b"))
    write_result(results, a_robust_result("vivi", 0.5))
    a_picture(results / "vivi.png")
    (results / "twice.json").write_text(path.read_text())
    page, said = report(results, out, paper=False)
    assert "vivi on cells (detection standard) is there twice; the first file by name counts" in said
    assert "On cells, the detectors were not trained and tested on the same images." in page.text
    assert "How well do they transfer?" in page.text
    assert page.html.index('id="robust"') < page.html.index('id="detection"')
    for file in (path, other, results / "twice.json"):
        file.unlink()
    page, _ = report(results, out, paper=False)
    assert 'id="detection"' not in page.html and "How robust are they?" in page.text
    assert not list((out / "tables").glob("detection*")) and not list((out / "pictures").iterdir())
