"""vivi evaluate vtab: the sweep, what is chosen, what is never repeated, and what bad input costs."""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import signal
import statistics
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from moments import start_signalled
from rich.console import Console
from runs import vivi_here
from small_tasks import write_task

from vivi.evaluate.finetune import Tuning
from vivi.evaluate.results import Setting, Trial, read_results
from vivi.evaluate.settings import FinetuneExecution, Subject, Sweep
from vivi.evaluate.subject import open_session
from vivi.evaluate.vtab import best_by_mean, best_trial
from vivi.evaluate.workers import Job, Work, Workers
from vivi.runtime.errors import UserError
from vivi.runtime.signals import StopRequest

ENCODER = ["--encoder", "untrained:test_resnet", "--size", "32", "--name", "small"]
SHORT = ["--schedules", "2", "5", "--batch", "8", "--seeds", "2", "--device", "cpu"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks: two of VTAB by name, and one that a user brings."""
    folder = tmp_path_factory.mktemp("data")
    write_task(folder / "svhn", 4, 1)
    write_task(folder / "clevr_dist", 3, 2)
    write_task(folder / "mine", 5, 3)
    return folder


def evaluate(data: Path, out: Path, *flags: object) -> str:
    return vivi_here("evaluate", "vtab", *ENCODER, *SHORT, "--data", data, "--out", out, *flags)


def contents(out: Path) -> dict[str, Any]:
    """The results, but for what differs from run to run."""
    found = {path.name: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}
    for result in found.values():
        del result["seconds"]
    return found


@pytest.fixture(scope="module")
def undisturbed_sweep(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    evaluate(data, out)
    return out


def runs(out: Path) -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in (out / "runs").glob("*/*.json")}


def test_every_task_and_setting_is_tried_and_the_best_mean_is_tested(undisturbed_sweep: Path) -> None:
    results, problems = read_results(undisturbed_sweep)
    assert not problems and [result.task for result in results] == ["clevr_distance", "mine", "svhn"]
    grid = [Setting(lr, steps) for lr in (0.1, 0.01) for steps in (2, 5)]
    assert all([trial.setting for trial in result.sweep] == grid for result in results)
    means = [statistics.fmean(result.sweep[i].accuracy for result in results) for i in range(4)]
    best = grid[means.index(max(means))]
    assert all(result.score.setting == best and len(result.score.accuracies) == 2 for result in results)
    assert all("mean validation accuracy over 3 tasks" in result.score.chosen_by for result in results)
    assert all(result.quick and result.benchmark == "vtab" and result.protocol == "v2" for result in results)
    groups = {result.task: (result.group, result.classes, result.split) for result in results}
    assert groups == {
        "svhn": ("natural", 10, "own split"),
        "clevr_distance": ("structured", 6, "own split"),
        "mine": ("own", 5, "lists"),
    }
    assert len(runs(undisturbed_sweep)) == 3 * (4 + 2)
    phases = [(run["phase"], run["seed"]) for run in runs(undisturbed_sweep).values()]
    assert sorted(set(phases)) == [("final", 0), ("final", 1), ("sweep", 0)]


def test_the_same_command_repeats_no_run_and_gives_the_same_result(
    data: Path, undisturbed_sweep: Path, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed_sweep, tmp_path / "again")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "again" / "runs").rglob("*.json")}
    said = evaluate(data, tmp_path / "again")
    assert "12 of 12 runs were done before" in said and "6 of 6 runs were done before" in said
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "again" / "runs").rglob("*.json")}
    assert contents(tmp_path / "again") == contents(undisturbed_sweep)


def test_choosing_by_task_reuses_the_sweep(data: Path, undisturbed_sweep: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed_sweep, tmp_path / "both")
    assert "12 of 12 runs were done before" in evaluate(data, tmp_path / "both", "--choose", "both")
    for result in read_results(tmp_path / "both")[0]:
        best = max(trial.accuracy for trial in result.sweep)
        first = next(trial.setting for trial in result.sweep if trial.accuracy == best)
        assert result.score_per_task is not None and result.score_per_task.setting == first
        assert "on this task" in result.score_per_task.chosen_by
        assert "mean" in result.score.chosen_by


def test_several_processes_give_the_same_result(data: Path, undisturbed_sweep: Path, tmp_path: Path) -> None:
    evaluate(data, tmp_path / "parallel", "--processes", "2")
    assert contents(tmp_path / "parallel") == contents(undisturbed_sweep)


def test_a_sweep_killed_at_random_moments_loses_and_repeats_no_run(
    data: Path, undisturbed_sweep: Path, tmp_path: Path
) -> None:
    """The process kills itself when it touches the nth file of a run; what was written before stays as it is."""
    out, moments = tmp_path / "killed", random.Random(0)
    flags = ["evaluate", "vtab", *ENCODER, *SHORT, "--data", data, "--out", out, "--checkpoint-seconds", "0"]
    done: dict[str, int] = {}
    for _ in range(3):
        nth = moments.randint(20, 70)
        process = start_signalled(signal.SIGKILL, out / "runs" / "*" / "*", nth, *flags)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == -signal.SIGKILL, errors
        now = {path.name: path.stat().st_mtime_ns for path in (out / "runs").glob("*/*.json")}
        assert done.items() <= now.items()
        done = now
    evaluate(data, out)
    after = {path.name: path.stat().st_mtime_ns for path in (out / "runs").glob("*/*.json")}
    assert done and done.items() <= after.items()
    assert contents(out) == contents(undisturbed_sweep)
    assert {name: run["accuracy"] for name, run in runs(out).items()} == {
        name: run["accuracy"] for name, run in runs(undisturbed_sweep).items()
    }
    assert not [path for path in (out / "runs").glob("*/*") if path.is_dir()]


def test_ctrl_c_says_that_the_same_command_goes_on(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    flags = ["evaluate", "vtab", *ENCODER, *SHORT, "--data", data, "--out", out]
    process = start_signalled(signal.SIGINT, out / "runs" / "*" / "*.json", 2, *flags)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and errors == "stopped; the same command goes on from here\n", said + errors


def damage(folder: Path, how: str) -> str:
    """Damages a task; returns what the line about it must say."""
    lists = folder / "test.txt"
    if how == "missing list":
        (folder / "val200.txt").unlink()
        return "val200.txt cannot be read (No such file or directory)"
    if how == "label out of range":
        lists.write_text(lists.read_text() + "images/test/000000.png 10\n")
        return (
            "test.txt line 13 is 'images/test/000000.png 10'; it must be the path of an image below the list's folder"
        )
    if how == "no label":
        lists.write_text("images/test/000000.png\n")
        return "test.txt line 1 is 'images/test/000000.png'; it must be the path of an image"
    if how == "empty task":
        for path in folder.glob("*.txt"):
            path.write_text("")
        return "train800.txt lists no images"
    image = folder / "images" / "val200" / "000003.png"
    if how == "missing image":
        image.unlink()
        return "000003.png cannot be read: No such file or directory"
    image.write_bytes(b"no image")
    return "000003.png cannot be read: it is damaged, or none of JPEG"


@pytest.mark.parametrize(
    "how", ["missing list", "label out of range", "no label", "empty task", "missing image", "unreadable image"]
)
def test_one_bad_task_is_named_and_the_others_go_on(data: Path, tmp_path: Path, how: str) -> None:
    shutil.copytree(data, tmp_path / "data")
    reason = damage(tmp_path / "data" / "svhn", how)
    flags = ["--schedules", "2", "--learning-rates", "0.1", "--seeds", "1"]
    with pytest.raises(UserError, match="1 of 3 tasks have no result: svhn") as caught:
        evaluate(tmp_path / "data", tmp_path / "results", *flags)
    assert "\n" not in str(caught.value)
    assert [result.task for result in read_results(tmp_path / "results")[0]] == ["clevr_distance", "mine"]
    said = refused(tmp_path / "data", tmp_path / "results", *flags)
    line = next(line for line in said.splitlines() if line.startswith("svhn is left out: "))
    assert reason in line


def test_a_task_too_small_to_train_on_costs_only_itself(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    write_task(tmp_path / "data" / "one", counts={"train800": 1, "val200": 1, "test": 3})
    flags = ["--schedules", "2", "5", "--learning-rates", "0.1", "--seeds", "1", "--size", "16"]
    for processes in ("1", "2"):
        out = tmp_path / processes
        said = refused(tmp_path / "data", out, *flags, "--processes", processes)
        assert "one is left out: 1 images, 1 at once, cannot be trained on" in said
        assert [result.task for result in read_results(out)[0]] == ["clevr_distance", "mine", "svhn"]


def refused(data: Path, out: Path, *flags: object) -> str:
    """What is printed before the error."""
    import io

    from vivi.cli.main import COMMANDS
    from vivi.cli.parse import parse

    words = [str(word) for word in ("evaluate", "vtab", *ENCODER, *SHORT, "--data", data, "--out", out, *flags)]
    console = Console(file=io.StringIO(), width=10_000)
    with pytest.raises(UserError):
        parse(words, COMMANDS).run(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--tasks", "svnh"], "there is no task 'svnh' in .*; did you mean svhn"),
        (["--protocol", "v1"], "there is no task in .* for --protocol v1: lists have Version 2 only"),
        (["--protocol", "full"], "there is no task in .* for --protocol full: lists have Version 2 only"),
        (["--seeds", "0"], "--seeds is 0; it must be between 1 and"),
        (["--schedules", "0"], "--schedules is 0; each must be more than 0"),
        (["--groups", "nature=mine"], "--groups has 'nature=mine'; write GROUP=TASK,TASK"),
        (["--device", "warp"], "--device warp cannot be used"),
        (["--data", "nowhere"], "there is no folder or list nowhere"),
    ],
)
def test_a_wrong_flag_is_one_line_before_any_work(data: Path, tmp_path: Path, flags: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line) as caught:
        evaluate(data, tmp_path / "results", *flags)
    assert "\n" not in str(caught.value) and not (tmp_path / "results").exists()


def test_other_weights_of_the_same_name_are_refused(data: Path, undisturbed_sweep: Path, tmp_path: Path) -> None:
    shutil.copytree(undisturbed_sweep, tmp_path / "results")
    with pytest.raises(UserError, match="is about other weights of the same name, 'small': give --name"):
        evaluate(data, tmp_path / "results", "--encoder", "untrained:test_vit", "--size", "160")


def test_how_long_all_of_it_takes_is_said_once(data: Path, tmp_path: Path) -> None:
    flags = ["--tasks", "mine", "svhn", "--schedules", "75", "--learning-rates", "0.1", "--seeds", "1"]
    said = evaluate(data, tmp_path / "results", *flags)
    assert said.count(" images/s: about ") == 1 and " for all of it on one such device, " in said


def test_groups_and_tasks_can_be_said(data: Path, tmp_path: Path) -> None:
    flags = ["--tasks", "mine", "--groups", "specialized=mine", "--schedules", "2", "--learning-rates", "0.1"]
    evaluate(data, tmp_path / "results", *flags)
    (result,) = read_results(tmp_path / "results")[0]
    assert (result.task, result.group, result.sweep) == ("mine", "specialized", ())


def test_a_single_task_folder_is_data_too(data: Path, tmp_path: Path) -> None:
    evaluate(data / "mine", tmp_path / "results", "--schedules", "2", "--learning-rates", "0.1", "--seeds", "1")
    assert [result.task for result in read_results(tmp_path / "results")[0]] == ["mine"]


def test_the_best_setting_is_that_of_a_search_by_hand() -> None:
    draw = random.Random(1)
    settings = [Setting(lr, steps) for lr in (0.1, 0.01) for steps in (2500, 10000)]
    for tasks in (1, 2, 19):
        table = [[Trial(setting, draw.randint(0, 9) / 9) for setting in settings] for _ in range(tasks)]
        sums = {setting: sum(row[i].accuracy for row in table) for i, setting in enumerate(settings)}
        winner = next(setting for setting in settings if sums[setting] >= max(sums.values()) - 1e-12)
        setting, mean = best_by_mean(table)
        assert mean == pytest.approx(max(sums.values()) / tasks)
        assert setting == winner or sums[setting] == pytest.approx(sums[winner])
        assert best_trial(table[0]).accuracy == max(trial.accuracy for trial in table[0])


def test_a_process_that_is_killed_between_two_runs_is_said_in_one_line(data: Path, tmp_path: Path) -> None:
    subject = Subject(encoder="untrained:test_resnet", data=data, out=tmp_path, size=32, tasks=("mine",))
    jobs = [Job("mine", "sweep", Tuning(Setting(0.1, steps), 0, 8)) for steps in (1, 2, 3)]
    places = [torch.device("cpu")] * 2
    with (
        pytest.raises(UserError, match=r"^the process that fine-tunes on mine ended with exit code -9, .*\Z"),
        open_session(subject, "v2", Console(quiet=True)) as session,
    ):
        work = Work(subject, Sweep(batch=8), FinetuneExecution(), session.model.checksum, 32, session.checksums)
        work.folder.mkdir(parents=True)
        with closing(Workers(work, session.model, session.tasks, places, StopRequest())) as workers:
            done = workers.carry_out(jobs, lambda job, step: None)
            assert next(done)[0] in jobs
            for process in multiprocessing.active_children():
                process.kill()
                process.join()
            list(done)
