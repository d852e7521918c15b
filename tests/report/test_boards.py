"""From results to boards: means, bests, differences, baselines, what is said about them."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from some_results import ENCODERS, HOSTILE, a_result, boards_of, report, some_results, written

from vivi.evaluate.results import Benchmark, Score
from vivi.report.boards import best, comparable, difference, leader, make_boards, mean, summary
from vivi.report.paper import paper_rows, summary_rows
from vivi.report.table import csv_text


def test_best_only_among_those_that_have_all_tasks() -> None:
    board = boards_of(some_results())[0]
    assert board.rows[0].name == ENCODERS[0] and board.baseline is board.rows[0]
    # vivi is better, on fewer tasks: it is no one's rival in the mean, but where all have the task.
    assert best(board.rows, board.counted) == {HOSTILE}
    assert best(board.rows, board.tasks("natural")) == {HOSTILE}
    assert best(board.rows, board.tasks("specialized")) == {"vivi"}
    assert best(board.rows[:1], board.counted) == frozenset()  # alone one is not best
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
    assert best(board.rows, ["dtd"]) == {"a", "b"}


def test_ranges_of_seeds() -> None:
    results = [a_result("a", "dtd", [0.1, 0.3, 0.2]), a_result("a", "pets", [0.5, 0.5, 0.2, 0.9])]
    row = boards_of(results)[0].rows[0]
    found = mean(row, ["dtd", "pets", "svhn"])
    assert found and found.tasks == 2 and found.value == pytest.approx((20 + 50) / 2)
    # The fourth seed has no partner.
    assert (found.low, found.high) == (pytest.approx((20 + 20) / 2), pytest.approx((30 + 50) / 2))
    assert row.cells["dtd"].spread == pytest.approx(10)
    single = boards_of([a_result("a", "dtd", [0.1])])[0].rows[0]
    assert single.cells["dtd"].spread is None and mean(single, ["dtd"]) == mean(single, ["dtd", "pets"])
    assert mean(single, ["pets"]) is None


def test_nothing_in_common_is_no_difference() -> None:
    board = boards_of([a_result("a", "dtd", [0.5]), a_result("b", "pets", [0.6])])[0]
    assert difference(board.rows[1], board.rows[0], board.counted) is None
    assert [line.difference for line in summary(board)] == [None, None]
    assert best(board.rows, board.counted) == frozenset() and leader(board) is None


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
    assert boards_of(results)[0].warnings == ("Results were measured with different settings: batch is 16 or 8.",)


def test_chance_and_the_error_of_so_many_test_images_are_told(tmp_path: Path) -> None:
    results = written(tmp_path / "results", [a_result("a", "dtd", [0.5], images={"test": 100})])
    page, _ = report(results, tmp_path / "page")
    assert "By chance, the mean would be about 10.0." in page.text and "uncertain by up to ±5.0" in page.text


def test_boards_and_their_order() -> None:
    boards = boards_of(some_results(), paper=True)
    assert [board.slug for board in boards] == ["vtab-v1", "vtab-v1-quick", "knn-v1", "vtab-v2", "vtab-full"]
    v1, quick, knn, v2, full = boards
    assert v1.own_split == ("DTD",) and quick.own_split == () and knn.own_split == ()
    # Paper's rows: not on quick boards, not for probes, not without tasks of VTAB.
    assert len(v1.paper) == 27 and len(v2.paper) == 29 and len(full.paper) == 27
    assert not knn.paper and not quick.paper
    assert not boards_of([a_result("a", "mine", [0.5])], paper=True)[0].paper
    # Alone, the paper's rows have its printed means, and its ImageNet baseline.
    assert v2.baseline and v2.baseline.name == "Ex-ImageNet"
    for line, row in zip(summary(v2), paper_rows("v2"), strict=True):
        assert line.mean and line.mean.value == row.printed_mean and line.mean.tasks == 19
    gains = {line.method.name: line.difference.value for line in summary(v2) if line.difference}
    printed = {row.method: row.difference for row in summary_rows("table1_v2")}
    for method in ("VIVI-Ex(4)", "VIVI-Ex(2)", "VIVI-Ex(4)-Big"):
        assert gains[method] == pytest.approx(printed[method])
    assert best(v2.shown, v2.counted) == {"VIVI-Ex(4)-Co(100%)-Big"}


def test_means_of_the_paper_are_shown_as_it_prints_them() -> None:
    boards = {board.slug: board for board in boards_of([], paper=True)}
    for slug, printed in (("vtab-v1", summary_rows("table1")), ("vtab-v2", summary_rows("groups_v2"))):
        lines = {line.method.name: line for line in summary(boards[slug])}
        for row in printed:
            line = lines[row.method]
            assert line.mean and line.mean.value == row.mean
            assert {group: found.value for group, found in line.groups.items() if found} == row.groups
    # On fewer tasks they are means of what is printed of these.
    some = boards_of([a_result("a", task, [0.5]) for task in ("dtd", "pets")], paper=True)[0]
    accuracies = next(row for row in paper_rows("v1") if row.method == "MS").accuracies
    found = mean(some.paper[0], some.tasks("natural"))
    assert found and found.value == pytest.approx((accuracies["dtd"] + accuracies["pets"]) / 2)


def test_baselines() -> None:
    results = [a_result(name, "dtd", [0.5]) for name in ("b", "Untrained-2", "a")]
    assert boards_of(results)[0].rows[0].name == "Untrained-2"
    assert boards_of(results[::2])[0].rows[0].name == "a"
    board = boards_of(results, paper=True, baseline="VIVI-Ex(4)")[0]
    assert board.baseline and board.baseline.paper
    gain = 50 - next(row for row in paper_rows("v1") if row.method == "VIVI-Ex(4)").accuracies["dtd"]
    assert all(line.difference and line.difference.value == pytest.approx(gain) for line in summary(board)[:3])
    # An encoder that is called like a row of the paper: both can be told apart, and named.
    twins = boards_of([a_result("VIVI-Ex(4)", "dtd", [0.5])], paper=True)[0]
    assert twins.find("VIVI-Ex(4)") is twins.rows[0] and twins.find("VIVI-Ex(4) (paper)") is not None


def test_what_makes_numbers_incomparable_is_said() -> None:
    results = [
        a_result("a", "dtd", [0.5], data_checksum="1", encoder_checksum="x"),
        a_result("b", "dtd", [0.5], data_checksum="2"),
        a_result("a", "pets", [0.5], encoder_checksum="y"),
    ]
    assert boards_of(results)[0].warnings == (
        "On DTD, the encoders were not measured on the same images.",
        "The results of a are from different weights.",
    )
    boards, problems = make_boards([results[0], replace(results[0], score=Score((0.9,)))], False, "")
    assert boards[0].rows[0].cells["dtd"].value == 50 and "twice" in problems[0]


def test_a_cell_that_a_spreadsheet_would_compute_becomes_text() -> None:
    cells = ["=1+1", "+cmd", "-x", "@SUM(A1)", "\t=1", "-1.5", "+2", "-1e-3", "a=b", "", "-inf"]
    shown = ["'=1+1", "'+cmd", "'-x", "'@SUM(A1)", "'\t=1", *cells[5:]]
    records = [{str(column): cell for column, cell in enumerate(cells)}]
    assert [*csv.reader(io.StringIO(csv_text(records)))][1] == shown
