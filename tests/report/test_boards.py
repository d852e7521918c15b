"""From results to boards: means, bests, differences, baselines, what is said about them."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from some_results import ENCODERS, HOSTILE, a_result, boards_of, report, some_results, table, written

from vivi.evaluate.results import Benchmark, Score, write_result
from vivi.report.boards import Board, Mean, comparable, difference, leader, mean
from vivi.report.paper import paper_rows
from vivi.report.table import Cells, csv_text
from vivi.report.transfer import means_table, tasks_table


def best(board: Board, title: str) -> set[str]:
    """The names of the rows that are bold under a title, in the table of means or of tasks."""
    for each in (means_table(board), tasks_table(board)):
        columns, ours, paper = each.view("files")
        titles = [column.title for column in columns]
        if title in titles:
            return {cells[0].shown for cells in (*ours, *paper) if cells[titles.index(title)].bold}
    raise KeyError(title)


def test_best_only_among_those_that_have_all_tasks() -> None:
    board = boards_of(some_results())[0]
    assert board.rows[0].name == ENCODERS[0] and board.baseline is board.rows[0]
    # vivi is better, on fewer tasks: it is no one's rival in the mean, but where all have the task.
    assert best(board, "Mean") == {HOSTILE}
    assert best(board, "Nat.") == {HOSTILE}
    assert best(board, "Spec.") == {"vivi"}
    assert best(boards_of([a_result("alone", "dtd", [0.5])])[0], "Mean") == set()
    assert not board.equal
    # The headline compares over what all share,
    assert comparable(board.rows, board.counted) == list(board.rows) and leader(board) is board.find("vivi")
    # but for an encoder that has just begun: its one task would be all.
    board = boards_of([*some_results(), a_result("new", "dtd", [1.0])])[0]
    assert [row.name for row in comparable(board.rows, board.counted)] == [*ENCODERS]
    assert leader(board) is board.find("vivi")


def test_ties_as_printed_are_both_best() -> None:
    board = boards_of(
        [a_result(name, "dtd", [value]) for name, value in (("a", 0.50001), ("b", 0.50004), ("c", 0.4))]
    )[0]
    assert best(board, "DTD") == {"a", "b"}


def test_ranges_of_seeds() -> None:
    results = [a_result("a", "dtd", [0.1, 0.3, 0.2]), a_result("a", "pets", [0.5, 0.5, 0.2, 0.9])]
    row = boards_of(results)[0].rows[0]
    found = mean(row, ["dtd", "pets", "svhn"])
    assert found.tasks == 2 and found.value == pytest.approx((20 + 50) / 2)
    # The fourth seed has no partner.
    assert (min(found.seeds), max(found.seeds)) == (pytest.approx((20 + 20) / 2), pytest.approx((30 + 50) / 2))
    assert row.cells["dtd"].spread == pytest.approx(10)
    single = boards_of([a_result("a", "dtd", [0.1])])[0].rows[0]
    assert single.cells["dtd"].spread is None and mean(single, ["dtd"]) == mean(single, ["dtd", "pets"])
    assert mean(single, ["pets"]) == Mean(None, 0)


def test_nothing_in_common_is_no_difference() -> None:
    board = boards_of([a_result("a", "dtd", [0.5]), a_result("b", "pets", [0.6])])[0]
    assert difference(board.rows[1], board.rows[0], board.counted) == Mean(None, 0)
    assert best(board, "Mean") == set() and leader(board) is None


def test_titles_say_how_many_labels_there_were_and_whose_tasks() -> None:
    def title(task: str, benchmark: Benchmark, *counts: int) -> str:
        results = [a_result(f"e{k}", task, [0.5], benchmark, images={"final": n}) for k, n in enumerate(counts)]
        return boards_of(results)[0].title

    assert title("dtd", "vtab", 1000) == "VTAB Version 1, 1000 examples"
    assert title("mine", "vtab", 500) == "Fine-tuning, 500 examples"
    assert title("mine", "linear", 500, 700) == "Linear probe, 500 to 700 examples"
    assert title("dtd", "knn", 1000) == "kNN probe, 1000 examples (Version 1)"


def test_a_baseline_that_is_best_is_called_best() -> None:
    board = boards_of([a_result("untrained", "dtd", [0.5]), a_result("other", "dtd", [0.3])])[0]
    best_of_all, best_other = leader(board, with_baseline=True), leader(board)
    assert best_of_all and best_other and (best_of_all.name, best_other.name) == ("untrained", "other")


def test_different_settings_on_one_board_are_told() -> None:
    results = [a_result(name, "dtd", [0.5], settings={"batch": batch}) for name, batch in (("a", 8), ("b", 16))]
    assert [*boards_of(results)[0].warnings()] == ["Results were measured with different settings: batch is 16 or 8."]


def test_chance_and_the_error_of_so_many_test_images_are_told(tmp_path: Path) -> None:
    results = written(tmp_path / "results", [a_result("a", "dtd", [0.5], images={"test": 100})])
    page, _ = report(results, tmp_path / "page")
    assert "By chance, the mean would be about 10.0." in page.text and "uncertain by up to ±5.0" in page.text


def test_boards_and_their_order() -> None:
    boards = boards_of(some_results(), paper=True)
    assert [board.slug for board in boards] == ["vtab-v1", "vtab-v1-quick", "knn-v1", "vtab-v2", "vtab-full"]
    v1, quick, knn, v2, full = boards
    assert v1.own_split == ["DTD"] and quick.own_split == [] and knn.own_split == []
    # Paper's rows: not on quick boards, not for probes, not without tasks of VTAB.
    assert len(v1.paper) == 27 and len(v2.paper) == 29 and len(full.paper) == 27
    assert not knn.paper and not quick.paper
    assert not boards_of([a_result("a", "mine", [0.5])], paper=True)[0].paper
    # Alone, the paper's rows have its printed means, and its ImageNet baseline.
    assert v2.baseline and v2.baseline.name == "Ex-ImageNet"
    for shown, row in zip(v2.shown, paper_rows("v2"), strict=True):
        assert mean(shown, v2.counted) == Mean(row.numbers["mean"], 19)
    printed = {row.method: row.numbers for row in paper_rows("table1_v2")}
    for method in ("VIVI-Ex(4)", "VIVI-Ex(2)", "VIVI-Ex(4)-Big"):
        found = v2.find(method)
        assert found
        gain = difference(found, v2.baseline, v2.counted)
        assert gain.value == pytest.approx(printed[method]["difference"])
    assert best(v2, "Mean") == {"VIVI-Ex(4)-Co(100%)-Big"}


def test_means_of_the_paper_are_shown_as_it_prints_them() -> None:
    boards = {board.slug: board for board in boards_of([], paper=True)}
    for slug, printed in (("vtab-v1", "table1"), ("vtab-v2", "groups_v2")):
        board = boards[slug]
        for row in paper_rows(printed):
            line = board.find(row.method)
            assert line and mean(line, board.counted).value == row.numbers["mean"]
            for group in ("natural", "specialized", "structured"):
                assert mean(line, board.tasks(group)).value == row.numbers[group]
    # On fewer tasks they are means of what is printed of these.
    some = boards_of([a_result("a", task, [0.5]) for task in ("dtd", "pets")], paper=True)[0]
    accuracies = next(row for row in paper_rows("v1") if row.method == "MS").numbers
    assert mean(some.paper[0], some.tasks("natural")).value == pytest.approx(
        (accuracies["dtd"] + accuracies["pets"]) / 2
    )


def test_baselines() -> None:
    results = [a_result(name, "dtd", [0.5]) for name in ("b", "Untrained-2", "a")]
    assert boards_of(results)[0].rows[0].name == "Untrained-2"
    assert boards_of(results[::2])[0].rows[0].name == "a"
    board = boards_of(results, paper=True, baseline="VIVI-Ex(4)")[0]
    assert board.baseline and board.baseline.paper
    gain = 50 - next(row for row in paper_rows("v1") if row.method == "VIVI-Ex(4)").numbers["dtd"]
    for row in board.rows:
        assert difference(row, board.baseline, board.counted).value == pytest.approx(gain)
    # An encoder that is called like a row of the paper: both can be told apart, and named.
    twins = boards_of([a_result("VIVI-Ex(4)", "dtd", [0.5])], paper=True)[0]
    assert twins.find("VIVI-Ex(4)") is twins.rows[0] and twins.find("VIVI-Ex(4) (paper)") is not None


def test_what_makes_numbers_incomparable_is_said(tmp_path: Path) -> None:
    results = [
        a_result("a", "dtd", [0.5], data_checksum="1", encoder_checksum="x"),
        a_result("b", "dtd", [0.5], data_checksum="2"),
        a_result("a", "pets", [0.5], encoder_checksum="y"),
    ]
    assert [*boards_of(results)[0].warnings()] == [
        "On DTD, the encoders were not measured on the same images.",
        "The results of a are from different weights.",
    ]
    folder = written(tmp_path / "results", results[:1])
    twice = write_result(tmp_path / "twice", replace(results[0], score=Score((0.9,))))
    twice.rename(folder / "z.json")
    _, said = report(folder, tmp_path / "page")
    assert "skipped: a on dtd (vtab v1) is there twice; the first file by name counts" in said
    assert table(tmp_path / "page/tables/vtab-v1-tasks.csv")[0]["accuracy"] == "50"


def test_a_cell_that_a_spreadsheet_would_compute_becomes_text() -> None:
    cells = ["=1+1", "+cmd", "-x", "@SUM(A1)", "\t=1", "-1.5", "+2", "-1e-3", "a=b", "", "-inf"]
    shown = ["'=1+1", "'+cmd", "'-x", "'@SUM(A1)", "'\t=1", *cells[5:]]
    records: list[Cells] = [{str(column): cell for column, cell in enumerate(cells)}]
    assert [*csv.reader(io.StringIO(csv_text(records)))][1] == shown
