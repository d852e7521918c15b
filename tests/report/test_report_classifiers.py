"""Results of classifiers: what is read as one, and their table in the report."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from some_results import HOSTILE, a_result, report, table

from vivi.evaluate.results import Result, read_result, read_results, write_result
from vivi.runtime.errors import UserError


def classified(encoder: str, top1: float, top5: float, title: str = "ImageNet", **others: Any) -> Result:
    given = {"images": {"test": 50000}, "data_checksum": "a", "top5": top5, **others}
    return replace(a_result(encoder, title, [top1], "classifier"), protocol="full", **given)


def test_results_of_before_are_read_and_impossible_ones_are_not(tmp_path: Path) -> None:
    write_result(tmp_path, a_result("old", "dtd", [0.5]))
    [path] = tmp_path.iterdir()
    content = json.loads(path.read_text())
    old = {name: value for name, value in content.items() if name not in ("top5", "unreadable", "notes")}
    path.write_text(json.dumps(old))
    assert read_result(path) == a_result("old", "dtd", [0.5])
    good = classified("new", 0.6, 0.8, unreadable=3, notes=("a.jpg: empty",))
    path = write_result(tmp_path, good)
    assert read_result(path) == good
    content = json.loads(path.read_text())
    for wrong in (
        {"benchmark": "knn"},
        {"top5": 0.5},
        {"top5": 1.1},
        {"unreadable": -1},
        {"notes": [3]},
        {"notes": None},
    ):
        path.write_text(json.dumps(content | wrong))
        with pytest.raises(UserError, match=r"is no result of vivi evaluate \("):
            read_result(path)


def test_classifiers_have_a_table_in_the_report(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "page"
    for result in (
        classified("low", 0.5636, 0.8042),
        classified(HOSTILE, 0.612345, 0.8385, unreadable=4, notes=('<b>"x".jpg: empty',)),
        classified("low", 0.3, 0.3, "flowers"),
    ):
        write_result(results, result)
    page, _ = report(results, out)
    assert "How well do they classify?" in page.text and "2 classifiers." in page.text
    assert "images that cannot be read do not count" in page.text and "4 unreadable" in page.text
    assert HOSTILE in page.text and page.tags.count("script") == 2 and "There are no results" not in page.text
    section = page.html[page.html.index('id="classifiers"') : page.html.index('id="paper"')]
    assert section.count('<td class="best">61.2</td>') == 1 and section.count('class="best"') == 2
    lines = table(out / "tables/classifiers.csv")
    assert [(line["method"], line["test_set"], line["top1"], line["top5"]) for line in lines] == [
        (HOSTILE, "ImageNet", "61.2345", "83.85"),
        ("low", "ImageNet", "56.36", "80.42"),
        ("low", "flowers", "30", "30"),
    ]
    assert [(line["images"], line["unreadable"]) for line in lines] == [
        ("50000", "4"),
        ("50000", "0"),
        ("50000", "0"),
    ]
    text = (out / "tables/classifiers.md").read_text()
    assert "| low | ImageNet | 56.4 | 80.4 | 50,000 |" in text and "**61.2** | **83.9**" in text
    assert r"\textbf{61.2} & \textbf{83.9} & 50,000 \\" in (out / "tables/classifiers.tex").read_text()
    assert all((out / name).is_file() for name in page.files())


def test_classifiers_stand_beside_boards_and_leave_no_table_behind(tmp_path: Path) -> None:
    results, out = tmp_path / "results", tmp_path / "page"
    write_result(results, a_result("vivi", "dtd", [0.5]))
    first = write_result(results, classified("vivi", 0.5, 0.6, data_checksum="b"))
    second = write_result(results, classified("other", 0.4, 0.6))
    (results / "twice.json").write_text(first.read_text())
    page, said = report(results, out, paper=False)
    assert "How well do they transfer?" in page.text and "1 encoder on 1 task" in page.text
    assert page.html.index('id="vtab-v1"') < page.html.index('id="classifiers"')
    assert "On ImageNet, the classifiers were not tested on the same images." in page.text
    assert "vivi on ImageNet (classifier full) is there twice" in said
    for path in (first, second, results / "twice.json"):
        path.unlink()
    page, _ = report(results, out, paper=False)
    assert 'id="classifiers"' not in page.html and not list((out / "tables").glob("classifiers*"))
    assert len(read_results(results)[0]) == 1
