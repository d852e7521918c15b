"""Folders of results in a bad state: values of wrong types anywhere, nothing to read, two writers of one page."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console
from some_results import a_detection_result, a_result, a_robust_result

from vivi.evaluate.results import read_all, read_result, write_result
from vivi.report.options import ReportOptions
from vivi.report.page import write_report
from vivi.runtime.errors import UserError
from vivi.runtime.storage import locked

STUDIES = Path(__file__).parents[2] / "studies"
WRONG: list[Any] = [None, [], {}, "x", "", -1, 1e400, math.nan, True, 10**400, "\ud800", [[]], 0.5]


def report(results: Path, out: Path, **options: Any) -> str:
    """What is printed while the page is made."""
    console = Console(file=io.StringIO(), width=10_000)
    write_report(results, out, ReportOptions(**options), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values are, at every depth; of lists the first two items."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, one in inner:
        yield from places(one, (*path, key))


def with_value(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = copy.copy(content)
    changed[path[0]] = with_value(content[path[0]], path[1:], value)
    return changed


def some_of_each_kind(folder: Path) -> list[Path]:
    write_result(folder, a_result("vivi", "dtd", [0.5, 0.6, 0.7], settings={"batch": 8}, images={"final": 1000}))
    write_result(folder, a_result("vivi", "mine", [0.5], "classifier", top5=0.8))
    write_result(folder, a_robust_result("vivi", 0.7, farthest=2, missing=1))
    write_result(folder, a_detection_result("vivi", [0.3, 0.4]))
    return sorted(folder.glob("*.json"))


def test_the_results_of_the_studies_are_read() -> None:
    for folder in (STUDIES / "vtab" / "results", STUDIES / "detection" / "results"):
        found, problems = read_all(folder)
        assert found and not problems
    assert read_result(STUDIES / "robust" / "coil.json")


def test_a_wrong_value_anywhere_is_named_with_its_file_or_does_no_harm(tmp_path: Path) -> None:
    """All of them are read; of those that are let pass, one for each place is reported."""
    passed: dict[tuple[str, str], Any] = {}
    for number, path in enumerate(some_of_each_kind(tmp_path / "good")):
        whole = json.loads(path.read_text())
        wrong = tmp_path / "wrong.json"
        for place in places(whole):
            for value in WRONG:
                wrong.write_text(json.dumps(changed := with_value(whole, place, value)))
                try:
                    read_result(wrong)
                except UserError as error:
                    assert "wrong.json is no result of vivi evaluate (" in str(error) and "\n" not in str(error)
                else:
                    kind = ".".join(part for part in place if isinstance(part, str))
                    passed[f"{number} {kind}", type(value).__name__] = changed
        assert any(name.startswith(f"{number} ") for name, _ in passed)
    for number, content in enumerate(passed.values()):
        changed = {**content, "encoder": f"{content['encoder']}{number}"}  # each is another one
        (tmp_path / "good" / f"passed{number}.json").write_text(json.dumps(changed))
    said = report(tmp_path / "good", tmp_path / "page")
    assert "is no result" not in said


def test_a_wrong_file_is_named_and_the_others_are_reported(tmp_path: Path) -> None:
    for path in some_of_each_kind(tmp_path / "results"):
        content = json.loads(path.read_text())
        for name in ("settings", "images", "notes", "versions"):
            wrong: Any = [] if isinstance(content.get(name), dict) else {}
            bad = path.with_name(f"bad-{name}-{path.name}")
            bad.write_text(json.dumps({**content, name: wrong}))
    said = report(tmp_path / "results", tmp_path / "page")
    named = [line for line in said.splitlines() if line.startswith("skipped: ") and "is no result" in line]
    assert len(named) == len(list((tmp_path / "results").glob("bad-*")))
    assert "vivi" in (tmp_path / "page" / "index.html").read_text()


def test_a_folder_of_something_else_a_file_and_a_dangling_link_are_each_one_line(tmp_path: Path) -> None:
    (tmp_path / "corpus.json").write_text("{}")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for path, words in (
        (tmp_path, "is a corpus: vivi inspect .* shows it; give the --out of a vivi evaluate"),
        (tmp_path / "corpus.json", "corpus.json cannot be read: Not a directory"),
        (tmp_path / "dangling", "there is no folder .*dangling; vivi evaluate"),
    ):
        with pytest.raises(UserError, match=words) as error:
            report(path, tmp_path / "page")
        assert "\n" not in str(error.value) and not (tmp_path / "page").exists()


AS_NOBODY = """
import os, sys
from pathlib import Path
from vivi.runtime.errors import UserError
from vivi.evaluate.results import read_all
os.setuid(65534)
try:
    read_all(Path(sys.argv[1]))
except UserError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not")
def test_a_folder_that_may_not_be_read_is_one_line() -> None:
    with tempfile.TemporaryDirectory() as place:  # which others may enter, unlike pytest's
        Path(place).chmod(0o755)
        folder = Path(place) / "results"
        some_of_each_kind(folder)
        folder.chmod(0)
        done = subprocess.run([sys.executable, "-c", AS_NOBODY, folder], capture_output=True, text=True, timeout=100)
    assert done.stdout == f"the results in {folder} cannot be read: Permission denied; give another folder\n", done


def test_two_reports_at_once_do_not_write_into_one_page(tmp_path: Path) -> None:
    some_of_each_kind(tmp_path / "results")
    with locked(tmp_path, "vivi report"), pytest.raises(UserError, match="another vivi report is writing to"):
        report(tmp_path / "results", tmp_path)


def test_pictures_of_runs_are_copied_if_they_are_pictures_and_no_links(tmp_path: Path) -> None:
    write_result(tmp_path / "results", a_result("vivi", "dtd", [0.5]))
    secret, good, bad = tmp_path / "secret.png", tmp_path / "good", tmp_path / "bad"
    for run in (good, bad):
        run.mkdir()
        (run / "recipe.json").write_text("{}")
    Image.new("RGB", (4, 4)).save(secret)
    (good / "curves.png").write_bytes(secret.read_bytes())
    (bad / "curves.png").symlink_to(secret)
    (bad / "augmented.png").write_text("root:x:0:0")
    said = report(tmp_path / "results", tmp_path / "page", runs=(good, bad))
    copied = [str(path.relative_to(tmp_path / "page")) for path in (tmp_path / "page" / "runs").rglob("*.png")]
    assert copied == ["runs/1-good/curves.png"]
    assert f"skipped: {bad / 'curves.png'}: it is a link" in said
    assert f"skipped: {bad / 'augmented.png'}: it is damaged, or no PNG" in said
    report(tmp_path / "results", tmp_path / "page")
    assert not [*(tmp_path / "page" / "runs").rglob("*.png")]  # no page refers to them any more
    (good / "recipe.json").unlink()
    with pytest.raises(UserError, match=r"there is no .*good/recipe\.json; give the --out of a vivi train"):
        report(tmp_path / "results", tmp_path / "page", runs=(good,))
