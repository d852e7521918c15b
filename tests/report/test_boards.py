"""From results to boards: means, bests, differences, baselines, what is said about them."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from some_results import ENCODERS, HOSTILE, a_result, boards_of, report, some_results, table, written

from vivi.evaluate.results import Benchmark, Result, Score, write_result
from vivi.report.boards import Accuracy, Board, Mean, Method, comparable, difference, leader, mean
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
    assert [row.name for row in board.rows] == ["vivi", HOSTILE, ENCODERS[0]]  # over the tasks that all have
    assert board.baseline is board.rows[-1]
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
    assert [row.name for row in board.rows] == ["vivi", HOSTILE, ENCODERS[0], "new"]
    assert comparable(board.rows, board.counted) == [*board.rows[:3]]
    assert leader(board) is board.find("vivi")


def test_ties_as_printed_are_both_best() -> None:
    board = boards_of(
        [a_result(name, "dtd", [value]) for name, value in (("a", 0.50001), ("b", 0.50004), ("c", 0.4))]
    )[0]
    assert best(board, "DTD") == {"a", "b"}


def test_errors_are_of_test_images_and_of_seeds() -> None:
    def row(seeds: Sequence[float], **others: Any) -> Method:
        return boards_of([a_result("a", task, seeds, **others) for task in ("dtd", "pets")])[0].rows[0]

    tasks = ["dtd", "pets", "svhn"]
    found = mean(row([0.1, 0.3, 0.2]), tasks)
    assert found.value == pytest.approx(20) and found.tasks == 2
    of_seeds = 10 / 3**0.5  # the standard deviation of the seeds is 10
    assert found.error == pytest.approx(1.96 * of_seeds / 2**0.5)
    of_images = 50 / 100**0.5  # binomial
    assert mean(row([0.5], images={"test": 100}), tasks).error == pytest.approx(1.96 * of_images / 2**0.5, rel=0.03)
    both = mean(row([0.6, 0.4, 0.5], images={"test": 100}), tasks).error
    assert both == pytest.approx(1.96 * (of_images**2 + of_seeds**2) ** 0.5 / 2**0.5, rel=0.03)
    # All of a few images right is not certainty, and of one run without a number of images nothing is known.
    certain = mean(row([1.0], images={"test": 20}), tasks).error
    assert certain is not None and certain > 3
    assert mean(row([0.5]), tasks) == Mean(50.0, 2, None) and mean(row([0.5]), ["svhn"]) == Mean(None, 0)


def test_the_binomial_error_covers_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    for truth, images in ((0.5, 300), (0.9, 50), (0.03, 100)):
        right = random.binomial(images, truth, 2000) / images
        cells = [
            Accuracy(100 * share, result=a_result("a", "dtd", [share], images={"test": images})) for share in right
        ]
        errors = np.sqrt([sum(cell.squared_errors) for cell in cells])
        assert 0.93 < (np.abs(100 * (right - truth)) <= errors).mean() < 0.995


def test_a_difference_within_its_error_is_grey_and_called_so(tmp_path: Path) -> None:
    def results(trained: float, **others: Any) -> list[Result]:
        encoders = (("untrained", 0.5), ("vivi", trained))
        return [a_result(name, "mine", [share], "linear", **others) for name, share in encoders]

    for trained, verdict in ((0.52, "within"), (0.48, "within"), (0.7, "up"), (0.3, "down")):
        board = boards_of(results(trained, images={"test": 100}))[0]
        first, second = board.find("vivi"), board.find("untrained")
        assert first and second and difference(first, second, board.counted).verdict == verdict
        folder = written(tmp_path / f"{trained}", results(trained, images={"test": 100}))
        page, _ = report(folder, tmp_path / "page", paper=False)
        kinds = {value for key, value in page.attributes if key == "class"}
        assert {"within", "up", "down"} & kinds == {verdict}
        assert f'class="value {verdict}"' in page.html  # in the headline as well
        assert ("points, within error:" in page.text) == (verdict == "within")
    # Of one run, and no number of images, no error is known: no colour, and nothing is called anything.
    page, _ = report(written(tmp_path / "unknown", results(0.7)), tmp_path / "page", paper=False)
    assert "so no error is" in page.text and not {"up", "within"} & {v for k, v in page.attributes if k == "class"}


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


def test_chance_is_told_and_which_error_is_meant(tmp_path: Path) -> None:
    results = written(tmp_path / "results", [a_result("a", "dtd", [0.5], images={"test": 100})])
    page, _ = report(results, tmp_path / "page")
    assert "By chance, the mean would be about 10.0." in page.text
    assert "from the number of test images (binomial)." in page.text
    line = table(tmp_path / "page/tables/vtab-v1-summary.csv")[0]
    assert float(line["mean_error"]) == pytest.approx(1.96 * 5, rel=0.03)
    # The paper prints no errors: none of its differences has a colour.
    assert not {"up", "down", "within"} & {value for key, value in page.attributes if key == "class"}


def test_one_folder_that_is_called_like_a_task_of_vtab_leaves_the_mean_over_all() -> None:
    results = [a_result("a", task, [0.5]) for task in ("mine", "hers", "dtd")]
    board = boards_of([*results, *[a_result("b", task, [0.4]) for task in ("mine", "hers")]], paper=True)[0]
    assert board.counted == ("dtd", "hers", "mine") and board.total == 3 and not board.paper
    assert [mean(row, board.counted).tasks for row in board.rows] == [3, 2]
    # With more of VTAB's tasks than one's own the mean is VTAB's, as the paper's.
    results += [a_result("a", task, [0.5]) for task in ("pets", "svhn")]
    assert {*boards_of(results, paper=True)[0].counted} == {"dtd", "pets", "svhn"}


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
    assert [mean(row, v2.counted).value for row in v2.shown] == sorted(
        (row.numbers["mean"] for row in paper_rows("v2")), reverse=True
    )
    for row in paper_rows("v2"):
        shown = v2.find(row.method)
        assert shown and mean(shown, v2.counted) == Mean(row.numbers["mean"], 19)
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
    shown = some.find("MS")
    assert shown and mean(shown, some.tasks("natural")).value == pytest.approx(
        (accuracies["dtd"] + accuracies["pets"]) / 2
    )


def test_baselines() -> None:
    def automatic(results: Sequence[Result]) -> str | None:
        baseline = boards_of(results)[0].baseline
        return baseline.name if baseline else None

    results = [a_result(name, "dtd", [0.5]) for name in ("b", "Untrained-2", "a")]
    assert automatic(results) == "Untrained-2" and automatic(results[::2]) == "a"
    assert automatic(results[:1]) is None
    # An untrained network is one by how it was named to vivi evaluate; it must be of the best one's architecture.
    small = a_result("small", "dtd", [0.1], encoder_from="untrained:resnet18", architecture="resnet18")
    large = a_result("large", "dtd", [0.2], encoder_from="untrained:resnet50", architecture="resnet50")
    mine = a_result("mine", "dtd", [0.7], architecture="resnet50")
    other = a_result("other", "dtd", [0.6], architecture="resnet18")
    assert automatic([small, mine, large]) == "large" and automatic([small, large, other]) == "small"
    assert automatic([small, mine, other]) == "mine" and automatic([small, mine]) is None
    chosen = boards_of([small, mine], baseline="small")[0].baseline
    assert chosen and chosen.name == "small"
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
