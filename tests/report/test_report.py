"""The report: its numbers against an obvious reference, its files, what it says and survives, and a real browser."""

from __future__ import annotations

import csv
import json
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CHROMIUM, Page, in_frames
from PIL import Image
from some_results import (
    ENCODERS,
    HOSTILE,
    SEEDS,
    TASKS,
    a_result,
    boards_of,
    report,
    some_results,
    table,
    written,
)

from vivi.evaluate.tasks import VTAB
from vivi.report.boards import leader
from vivi.report.figures import PAPER_BARS, draw_differences, draw_groups
from vivi.report.paper import paper_rows
from vivi.report.table import latex_escaped, markdown_escaped, one_digit, signed
from vivi.report.transfer import board_section, compared
from vivi.runtime.errors import UserError


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = written(tmp_path_factory.mktemp("report") / "results <i>", some_results())
    (folder / "damaged <b>.json").write_text('{"format": 1, "encoder": ')
    (folder / "other.json").write_text("[]")
    odd = json.loads((folder / a_result("vivi", "dtd", [0.5]).file_name).read_text())
    odd["encoder"], odd["score"]["setting"]["lr"] = "odd", "high"
    (folder / "odd--vtab-v1--dtd.json").write_text(json.dumps(odd))
    return folder


@pytest.fixture(scope="module")
def printed(results: Path) -> tuple[Page, str]:
    return report(results, results.parent / "page")


@pytest.fixture(scope="module")
def page(printed: tuple[Page, str]) -> Path:
    return printed[0].path


# --- a slow and obvious reference, from the files themselves ---


def reference(results: Path, encoder: str, tasks: Sequence[str]) -> list[float]:
    """The seeds' medians of an encoder on those of the tasks that it has, in percent."""
    found = {}
    for path in results.glob("*--vtab-v1--*.json"):
        content = json.loads(path.read_text())
        if content["encoder"] == encoder:
            found[content["task"]] = 100 * sorted(content["score"]["accuracies"])[SEEDS // 2]
    return [found[task] for task in tasks if task in found]


def seed_error(results: Path, encoder: str) -> float:
    """Half of the 95 % interval of the mean over tasks; these results do not say how many test images there were."""
    contents = [json.loads(path.read_text()) for path in results.glob("*--vtab-v1--*.json")]
    ours = [c["score"]["accuracies"] for c in contents if c["encoder"] == encoder and c["task"] in TASKS]
    squares = [statistics.stdev(seeds) ** 2 / SEEDS for seeds in ours]
    return 1.96 * 100 * float(sum(squares) ** 0.5) / len(ours)


def test_means_groups_and_differences(results: Path, page: Path) -> None:
    lines = {line["method"]: line for line in table(page.parent / "tables/vtab-v1-summary.csv")}
    members = {
        group: [t.name for t in VTAB if t.group == group and t.name in TASKS] for group in ("natural", "structured")
    }
    for encoder in ENCODERS:
        line, values = lines[encoder], reference(results, encoder, TASKS)
        assert float(line["mean"]) == pytest.approx(sum(values) / len(values), abs=1e-3)
        assert int(line["tasks"]) == len(values) == (4 if encoder == "vivi" else 6)
        assert line["tasks_in_all"] == "19" and line["source"] == "ours"
        assert float(line["mean_error"]) == pytest.approx(seed_error(results, encoder), abs=1e-3)
        for group, tasks in members.items():
            of_group = reference(results, encoder, tasks)
            assert float(line[group]) == pytest.approx(sum(of_group) / len(of_group), abs=1e-3)
            assert int(line[f"{group}_tasks"]) == len(of_group)
        assert float(line["own"]) == pytest.approx(reference(results, encoder, ["own <b>&_%"])[0], abs=1e-3)
        # Differences are over what both have: for vivi, four tasks.
        if encoder == ENCODERS[0]:
            assert line["difference"] == ""
        else:
            both = [task for task in TASKS if reference(results, encoder, [task])]
            gains = np.subtract(reference(results, encoder, both), reference(results, ENCODERS[0], both))
            assert float(line["difference"]) == pytest.approx(gains.mean(), abs=1e-3)
            assert int(line["difference_tasks"]) == len(both)
    # The paper's rows are over the tasks of this board alone.
    paper = next(row for row in paper_rows("v1") if row.method == "VIVI-Ex(4)")
    assert lines["VIVI-Ex(4)"]["source"] == "paper" and lines["VIVI-Ex(4)"]["tasks"] == "6"
    expected = statistics.fmean(paper.numbers[task] for task in TASKS)
    assert float(lines["VIVI-Ex(4)"]["mean"]) == pytest.approx(expected, abs=1e-3)


def test_tasks_seeds_and_settings(results: Path, page: Path) -> None:
    lines = [line for line in table(page.parent / "tables/vtab-v1-tasks.csv") if line["source"] == "ours"]
    assert len(lines) == 2 * 7 + 5
    for line in lines:
        assert float(line["accuracy"]) == pytest.approx(
            reference(results, line["method"], [line["task"]])[0], abs=1e-3
        )
        seeds = [float(seed) for seed in line["seeds"].split()]
        assert len(seeds) == SEEDS and float(line["lowest_seed"]) == min(seeds)
        assert float(line["highest_seed"]) == max(seeds)
        assert (line["lr"], line["steps"], line["chosen_by"]) == ("0.01", "2500", "best mean over tasks")
    # The paper's order, then the tasks that users bring.
    assert [line["task"] for line in lines if line["method"] == HOSTILE] == [*TASKS, "own <b>&_%"]


# --- files ---


def test_every_file_is_there_and_nothing_else(page: Path) -> None:
    found = Page(page)
    linked = {file for file in found.files()}
    linked |= {value for key, value in found.attributes if key == "srcset"}
    for file in linked:
        assert (page.parent / file).is_file(), file
    there = {str(path.relative_to(page.parent)) for path in page.parent.rglob("*") if path.is_file()}
    assert there == linked | {"index.html"}
    assert len([file for file in there if file.endswith(".csv")]) == 2 * 5


def test_csv_and_markdown_have_equal_lines(page: Path) -> None:
    for path in (page.parent / "tables").glob("*.csv"):
        with open(path, newline="") as file:
            assert len({len(line) for line in csv.reader(file)}) == 1, path
    for path in (page.parent / "tables").glob("*.md"):
        lines = path.read_text().splitlines()[2:]
        assert len(lines) >= 4
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1, path
    text = (page.parent / "tables/vtab-v1-summary.md").read_text()
    assert markdown_escaped(HOSTILE) in text and "<script>" not in text
    assert "own split: DTD" in text


def test_latex_is_balanced(page: Path) -> None:
    for path in (page.parent / "tables").glob("*.tex"):
        text = path.read_text()
        body = re.sub(r"\\[\\{}%&#_$]", lambda found: "@@" if found[0] != r"\\" else found[0], text)
        lines = [line for line in body.splitlines() if not line.startswith("%")]
        assert all(line.count("{") == line.count("}") for line in lines), path
        assert not any("%" in line or line.count("$") % 2 for line in lines), path
        rows = [line for line in lines if line.endswith(r"\\")]
        columns = re.search(r"\\begin\{tabular\}\{(l r*|lr*)\}", text)
        assert columns and {line.count("&") + 1 for line in rows} == {len(columns[1])}, path
        assert len(rows) >= 4 and r"\toprule" in text and r"\bottomrule" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX here")
def test_latex_compiles(page: Path, tmp_path: Path) -> None:
    tables = sorted((page.parent / "tables").glob("vtab-v1-*.tex"))
    inputs = "\n\n".join(rf"\input{{{path.name}}}" for path in tables)
    text = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}\tiny {inputs} \end{{document}}"
    (tmp_path / "all.tex").write_text(text)
    for path in tables:
        shutil.copy(path, tmp_path)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, errors="replace")
    assert done.returncode == 0, done.stdout[-1500:]


def test_bold_in_the_files_and_on_the_page(page: Path) -> None:
    rows = (page.parent / "tables/vtab-v1-tasks.md").read_text().splitlines()[4:]
    cells = {re.split(r"(?<!\\)\|", row)[1].strip(): re.split(r"(?<!\\)\|", row)[2:-1] for row in rows}
    board = boards_of(some_results())[0]
    for number, column in enumerate(board.columns):
        values = {row.name: f"{row.cells[column.task].value:.1f}" for row in board.rows if column.task in row.cells}
        highest = max(values.values(), key=float)
        for name, value in values.items():
            text = cells[markdown_escaped(name)][number].strip()
            assert text.startswith("**") == (value == highest) and value in text and "±" in text
    html = page.read_text()
    first = html[html.index('id="vtab-v1"') : html.index('id="vtab-v1-quick"')]
    assert len(re.findall(r'<td class="best', first)) == sum(row.count("**") // 2 for row in rows) + sum(
        line.count("**") // 2 for line in (page.parent / "tables/vtab-v1-summary.md").read_text().splitlines()[4:]
    )


def test_pictures_are_not_blank(page: Path) -> None:
    pictures = sorted((page.parent / "figures").glob("*.png"))
    assert len(pictures) == 5 * 2
    for path in pictures:
        with Image.open(path) as image:
            image.load()
            shades = np.unique(np.asarray(image.convert("L"))[::3, ::3])
            assert image.width > 800 and image.height > 200 and len(shades) > 50, path
            corner = image.convert("RGB").getpixel((2, 2))
            assert corner == (255, 255, 255)
        # The same drawing for screens, with other colours on dark ones.
        svg = path.with_suffix(".svg").read_text(encoding="utf-8")
        light, dark = re.findall(r":root\{(.*?)\}", svg)
        names = re.findall(r"(--c\d+):", light)
        assert names == re.findall(r"(--c\d+):", dark) and "#ffffff" in light and "#171a20" in dark
        used = set(re.findall(r"var\((--c\d+)\)", svg))
        assert len(used) > 3 and used <= set(names)


def test_the_chart_of_differences(tmp_path: Path) -> None:
    v1, quick = boards_of(some_results(), paper=True)[:2]
    first, second = v1.find("vivi"), v1.find("VIVI-Ex(4)")
    assert first and second
    picture = draw_differences(v1, first, second, tmp_path)
    shared = [column for column in v1.columns if column.task in first.cells and column.task in second.cells]
    gains = {each.title: first.cells[each.task].value - second.cells[each.task].value for each in shared}
    least, most = min(gains, key=gains.__getitem__), max(gains, key=gains.__getitem__)
    assert picture and len(gains) == 4
    assert f"from {signed(gains[least])} on {least} to {signed(gains[most])} on {most}" in picture.alt
    assert f"better on {sum(gain > 0 for gain in gains.values())}" in picture.caption
    # Quick boards have no rows of the paper: the page says why there is no chart.
    section = board_section(quick, ("vivi", "VIVI-Ex(4)"), "", tmp_path)
    assert [figure.title for figure in section.figures] == ["Groups"]
    assert section.data["compare"] and section.data["second"] is None
    page, _ = report(written(tmp_path / "results", some_results()), tmp_path / "page", compare=("vivi", "VIVI-Ex(4)"))
    assert page.text.count("one of the two rows to compare is not in this table") == 4  # the paper’s others too
    # By default the best is compared with the baseline.
    assert compared(v1, (), "") == (leader(v1), v1.baseline)
    alone = boards_of([a_result("a", "dtd", [0.5])])[0]
    assert compared(alone, (), "") == (None, None)


def test_a_baseline_that_is_not_on_the_board(results: Path, tmp_path: Path) -> None:
    quick = boards_of(some_results(), paper=True, baseline="VIVI-Ex(4)")[2]
    assert quick.baseline is None
    page, _ = report(results, tmp_path / "page", baseline="VIVI-Ex(4)")
    assert all(line["difference"] == "" for line in table(tmp_path / "page/tables/vtab-v1-quick-summary.csv"))
    assert page.text.count("The baseline is not in this table") == 2  # that of quick results, and of the probe


def test_a_crowd_of_encoders_and_odd_names_can_be_drawn(tmp_path: Path) -> None:
    names = [f"_{number} $\\frac$ 日本 " + "x" * 200 for number in range(15)]
    board = boards_of([a_result(name, task, [0.5, 0.6]) for name in names for task in ("dtd", "eurosat")])[0]
    picture = draw_groups(board, tmp_path)
    assert picture and "Not drawn: 3 of the rows above." in picture.caption
    assert draw_groups(boards_of([a_result("a", "dtd", [0.5]), a_result("b", "pets", [0.5])])[0], tmp_path) is None


def test_encoders_called_like_the_papers_own_choice_leave_its_boards_without_bars(tmp_path: Path) -> None:
    board = boards_of([a_result(name, "dtd", [0.5]) for name in PAPER_BARS], paper=True)[-1]
    assert not board.rows and draw_groups(board, tmp_path) is None


def test_escapes() -> None:
    assert latex_escaped(r"50% a_b & \x^2 {$}~#") == (
        r"50\% a\_b \& \textbackslash{}x\textasciicircum{}2 \{\$\}\textasciitilde{}\#"
    )
    assert latex_escaped("[0] a\nb") == "{[0] a b}"
    assert markdown_escaped("a|b_c\n*d* <e>") == r"a\|b\_c \*d\* \<e\>"
    assert one_digit(80.95) == 81.0 and one_digit(-0.25) == -0.3 and one_digit(80.949) == 80.9
    assert [signed(value) for value in (3.04, -0.26, 0.04, -0.04)] == ["+3.0", "−0.3", "0.0", "0.0"]


# --- the page ---


def test_what_the_page_says(results: Path, printed: tuple[Page, str]) -> None:
    page, said = printed
    assert "3 encoders on 8 tasks, 6 of VTAB and 2 of your own, by fine-tuning and a kNN probe." in page.text
    assert "Differences are to untrained net ." in page.text
    assert "6 of VTAB’s 19 tasks were measured. The paper’s rows are over these tasks alone." in page.text
    assert "Own split: the images of DTD are not VTAB’s" in page.text.replace(" :", ":")
    assert "Not every encoder has every task." in page.text
    assert "not with the paper, whose rows are therefore left out" in page.text
    for name in ("damaged <b>.json", "other.json", "odd--vtab-v1--dtd.json"):
        assert name in said and name in page.text
    assert said.count("\n") == 3
    assert "AutoAugment" in page.text and "RetinaNet" in page.text and "Clopper" in page.text
    # Names from files never become markup.
    assert page.tags.count("script") == page.html.count("<script>") == 2
    assert HOSTILE in page.text and "own <b>&_%" in page.text
    # How a number came about.
    assert any(key == "title" and "learning rate 0.01 × 2,500 steps" in value for key, value in page.attributes)
    assert not re.search(r'(src|href|srcset)="(https?:)?//', page.html)
    assert all(attribute != "style" for attribute, _ in page.attributes)


def test_the_paper_beside_a_result_and_then_results_alone(tmp_path: Path) -> None:
    """The paper's tables are offered; a page made anew leaves no tables behind, but what others put."""
    one, out = written(tmp_path / "one", [a_result("a", "mine", [0.5], "classifier")]), tmp_path / "page"
    page, _ = report(one, out)
    assert "The paper’s results" in page.text and "VTAB Version 2, 1000 examples" in page.text
    assert len(list((out / "tables").glob("vtab-*"))) == 3 * 2 * 3
    line = next(line for line in table(out / "tables/vtab-v1-summary.csv") if line["method"] == "VIVI-Ex(4)-Big")
    assert line["mean"] == "63.3" and line["baseline"] == "Ex-ImageNet"
    assert line["difference"] == "3.8"  # as in Table 1
    (out / "tables/mine.csv").write_text("1")
    results = written(tmp_path / "results", [a_result(name, "mine", [0.5], "knn") for name in ("a", "b")])
    page, _ = report(results, out, paper=False)
    names = {path.name for path in (out / "tables").iterdir()}
    assert names == {
        f"knn-v1-{kind}.{suffix}" for kind in ("summary", "tasks") for suffix in ("csv", "md", "tex")
    } | {"mine.csv"}
    assert "own tasks" in page.text and "paper’s" not in page.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"baseline": "vivy"}, "--baseline: there is no 'vivy'; did you mean 'vivi'?"),
        ({"baseline": "vivi-ex(4)"}, "did you mean 'VIVI-Ex(4)'?"),
        (
            {"compare": ("vivi", "Untrained-net")},
            "--compare: there is no 'Untrained-net'; did you mean 'untrained net'?",
        ),
        ({"compare": ("vivi",)}, "--compare takes two different names"),
        ({"compare": ("vivi", "vivi")}, "--compare takes two different names"),
        ({"baseline": "VIVI-Ex(4)", "paper": False}, "leave --no-paper away"),
        ({"runs": (Path("nowhere"),)}, "there is no nowhere/recipe.json; give the --out of a vivi train"),
        ({"encoders": (Path("."),)}, "give --corpus as well"),
    ],
)
def test_options_that_cannot_be(results: Path, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        report(results, tmp_path / "page", **options)
    assert words in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "page").exists()


def test_nothing_to_show_and_nowhere_to_write(results: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for paper in (False, True):
        with pytest.raises(UserError, match=r"there are no results in .*; give the --out of a vivi evaluate"):
            report(tmp_path / "empty", tmp_path / "page", paper=paper)
    with pytest.raises(UserError, match="there is no folder "):
        report(tmp_path / "nowhere", tmp_path / "page")
    (tmp_path / "index.html").write_text("<p>my own page</p>")
    with pytest.raises(UserError, match="was not made by vivi report"):
        report(results, tmp_path)
    with pytest.raises(UserError, match="is a file"):
        report(results, tmp_path / "index.html")
    assert (tmp_path / "index.html").read_text() == "<p>my own page</p>"


def test_importing_the_report_needs_no_torch() -> None:
    code = "import sys, vivi.report.page; print([name for name in ('torch', 'matplotlib') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


PROBE = """<script>
addEventListener("load", () => {
  const root = document.documentElement;
  document.querySelectorAll("details").forEach((details) => { details.open = true; });
  const board = document.querySelector(".board");
  const seen = () => [...board.querySelectorAll("table tbody.paper tr")].filter((row) => row.offsetHeight > 0).length;
  const input = board.querySelector(".switch input");
  const found = { width: innerWidth, overflow: root.scrollWidth - root.clientWidth, before: seen() };
  input.click();
  found.after = seen();
  found.inTable = board.querySelectorAll("table:first-of-type tbody.paper").length;
  found.overflowAfter = root.scrollWidth - root.clientWidth;
  const cell = board.querySelector(".tasks tbody th"), scroll = cell.closest(".scroll");
  const left = cell.getBoundingClientRect().left;
  scroll.scrollLeft = 120;
  found.scrolls = scroll.scrollWidth > scroll.clientWidth;
  found.sticks = Math.abs(cell.getBoundingClientRect().left - left) < 1;
  scroll.scrollLeft = 0;
  input.click();
  found.again = seen();
  found.broken = [...document.images].filter((image) => image.complete && !image.naturalWidth).length;
  found.problems = problems;
  parent.postMessage(found, "*");
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_in_a_browser(page: Path, tmp_path: Path) -> None:
    """On a phone and a large screen nothing sticks out, and the switch shows and hides the paper's rows."""
    shutil.copytree(page.parent, tmp_path / "page")
    reports = in_frames(tmp_path / "page", page.read_text(), PROBE, (390, 1600))
    assert sorted(found["width"] for found in reports) == [390, 1600]
    for found in reports:
        assert found["problems"] == [] and found["broken"] == 0
        assert found["overflow"] == 0 and found["overflowAfter"] == 0
        assert found["before"] == 0 and found["again"] == 0
        assert found["after"] == 2 * (27 + 1) and found["inTable"] == 2
        assert found["sticks"] and (found["scrolls"] or found["width"] > 390)
