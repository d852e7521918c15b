"""One table in its four formats: HTML, CSV, Markdown, LaTeX."""

from __future__ import annotations

from pathlib import Path

from browser import Page

from vivi.report.table import Cell, Column, Table, write_table
from vivi.report.writing import templates

TABLE = Table(
    "scores",
    "Scores & more",
    "In percent.",
    {
        "model": Column("Model"),
        "set": Column("", "Set"),
        "mean": Column("Mean", "Mean of all", hint="over tasks"),
        "n": Column("n", ""),
    },
    [
        {"model": "a_b", "mean": Cell(80.9512, spread="0.4", rivals="ours"), "set": Cell("own", badge=True), "n": 3},
        {"model": Cell("=<i>", "<i>", "<i> (all)", kind="baseline"), "mean": Cell(7.5, rivals="ours", small="of 2")},
        {"model": "VIVI, paper", "mean": 90.1, "set": "VTAB", "n": 1900, "source": "paper"},
    ],
    [
        {"model": "a_b", "mean": 80.95123, "n": 3},
        {"model": "=<i>", "mean": 7.5},
        {"model": "VIVI, paper", "mean": 90.1, "n": 1900},
    ],
)


def test_files(tmp_path: Path) -> None:
    write_table(TABLE, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(TABLE.files.values())
    assert TABLE.files == {"CSV": "scores.csv", "Markdown": "scores.md", "LaTeX": "scores.tex"}
    csv, markdown, latex = ((tmp_path / file).read_text() for file in TABLE.files.values())
    assert csv == 'model,mean,n\na_b,80.9512,3\n\'=<i>,7.5,\n"VIVI, paper",90.1,1900\n'
    assert markdown.splitlines() == [
        r"**Scores \& more**. In percent.",
        "",
        "| Model | Mean | n |",
        "| :--- | ---: | ---: |",
        r"| a\_b | **81.0 ± 0.4** | 3 |",
        r"| \<i\> (all) | 7.5 |  |",
        "| VIVI, paper | 90.1 | 1,900 |",
    ]
    assert latex.splitlines() == [
        "% Scores & more",
        "% In percent.",
        r"% \usepackage{booktabs}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"Model & Mean & n \\",
        r"\midrule",
        r"a\_b & \textbf{81.0} {\scriptsize$\pm$0.4} & 3 \\",
        r"\textless{}i\textgreater{} (all) & 7.5 &  \\",
        r"\midrule",
        r"VIVI, paper & 90.1 & 1,900 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_on_the_page(tmp_path: Path) -> None:
    macros = templates().get_template("table.html").module
    path = tmp_path / "page.html"
    path.write_text(macros.files(TABLE) + macros.show(TABLE, "Scores", "In percent."))  # type: ignore[attr-defined]
    page = Page(path)
    assert page.files() == {f"tables/{file}" for file in TABLE.files.values()}
    assert "Model Set Mean of all a_b own 81.0 ±0.4 <i> – 7.5 of 2 In the paper VIVI, paper VTAB 90.1" in page.text
    assert page.html.count('<td class="best">81.0') == page.html.count('<tr class="baseline">') == 1
    assert ("title", "over tasks") in page.attributes and "<i>" not in page.html
