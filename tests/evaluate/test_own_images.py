"""A folder of images for each class, or a list of them, evaluated: what is said, what is written, what is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch
from runs import vivi_here
from small_tasks import write_class_folders, write_task

from vivi.data.images import find_images
from vivi.evaluate.finetune import Tuning
from vivi.evaluate.results import Result, Setting, read_results, wilson
from vivi.evaluate.settings import FinetuneExecution, Subject, Sweep
from vivi.evaluate.tasks.own import read_own_task
from vivi.evaluate.workers import Job, Work, _serve
from vivi.runtime.errors import UserError
from vivi.runtime.process_pool import Done

ENCODER = ["--encoder", "untrained:test_resnet", "--size", "32", "--device", "cpu", "--name", "small"]
CLASSES = {"left bar": 15, "middle": 14, "rechts": 13}


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_class_folders(tmp_path_factory.mktemp("data") / "bars", CLASSES)


def only_result(out: Path) -> Result:
    (result,) = read_results(out)[0]
    return result


def test_class_folders_are_evaluated_and_reported(bars: Path, tmp_path: Path) -> None:
    short = {"vtab": ["--schedules", "2", "3", "--batch", "8", "--seeds", "1"]}
    counts = "33 images to train on (6 of them to choose settings by), 9 to test on, split by seed 0; give train/ and"
    for benchmark in ("linear", "knn", "vtab"):
        flags, out = short.get(benchmark, []), tmp_path / benchmark
        said = vivi_here("evaluate", benchmark, *ENCODER, *flags, "--data", bars, "--out", out)
        assert f"bars: 3 classes ('left bar', 'middle', 'rechts'), {counts}" in said
        result = only_result(out)
        assert (result.task, result.group, result.classes, result.split) == ("bars", "own", 3, "own split")
        assert result.images == {"sweep": 27, "validation": 6, "final": 33, "test": 9}
        assert len(result.notes) == 1 and result.notes[0] in said
        low, high = result.interval or (0, 0)
        share, margin = (f"{100 * value + 1e-9:.1f}" for value in (result.score.median, (high - low) / 2))
        assert f"accuracy {share} % ± {margin} of 9 test images" in said
        assert benchmark == "vtab" or result.score.median > 0.5  # chance is 0.33
    vivi_here("report", tmp_path / "vtab", "--out", tmp_path / "page")
    page = (tmp_path / "page/index.html").read_text()
    assert "bars: 3 classes (&#39;left bar&#39;, " in page and "9 to test on, split by seed 0" in page


def test_another_seed_splits_otherwise_also_in_a_worker_process(bars: Path, tmp_path: Path) -> None:
    flags = ["--schedules", "2", "--learning-rates", "0.1", "--batch", "8", "--seeds", "1", "--split-seed", "4"]
    said = vivi_here("evaluate", "vtab", *ENCODER, *flags, "--data", bars, "--out", tmp_path / "results")
    result = only_result(tmp_path / "results")
    assert "split by seed 4" in said and result.data_checksum != read_own_task(bars).checksum()
    subject = Subject("untrained:test_resnet", bars, tmp_path / "worker", size=32, name="small", split_seed=4)
    sweep, machine = Sweep(schedules=(2,), learning_rates=(0.1,), batch=8, seeds=1), FinetuneExecution(device="cpu")
    work = Work(subject, sweep, machine, result.encoder_checksum, 32, {"bars": result.data_checksum})
    work.folder.mkdir(parents=True)
    here, there = Pipe()
    here.send(Job("bars", "final", Tuning(Setting(0.1, 2), 0, 8)))
    messages: list[object] = []

    def read() -> None:
        while not messages or not isinstance(messages[-1], Done):
            messages.append(here.recv())
        here.close()

    with ThreadPoolExecutor(1) as reader:
        reader.submit(read)
        _serve(there, work, "cpu", torch.get_num_threads(), compile=False)
    assert isinstance(messages[-1], Done) and messages[-1].value.accuracy == result.score.median


def test_a_csv_file_and_a_text_list_give_the_same_task_as_folders(bars: Path, tmp_path: Path) -> None:
    shutil.copytree(bars, tmp_path / "set")
    images = find_images(tmp_path / "set")
    lines = [(f"set/{name}", images.classes[label]) for name, label in zip(images.names, images.labels, strict=True)]
    (tmp_path / "some.csv").write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in lines))
    vivi_here("evaluate", "knn", *ENCODER, "--data", tmp_path / "some.csv", "--out", tmp_path / "results")
    result = only_result(tmp_path / "results")
    assert result.task == f"{tmp_path.name}-some" and result.classes == 3
    assert result.images == read_own_task_sizes(bars)


def read_own_task_sizes(data: Path) -> dict[str, int]:
    return {part: len(examples) for part, examples in read_own_task(data).parts().items()}


def test_full_has_the_same_images_and_version_1_none(bars: Path, tmp_path: Path) -> None:
    vivi_here("evaluate", "knn", *ENCODER, "--protocol", "full", "--data", bars, "--out", tmp_path / "results")
    assert only_result(tmp_path / "results").images == read_own_task_sizes(bars)
    with pytest.raises(UserError, match=r"no task in .* for --protocol v1: .* your own labelled images that and"):
        vivi_here("evaluate", "knn", *ENCODER, "--protocol", "v1", "--data", bars, "--out", tmp_path / "results")


def test_what_was_left_out_is_said_and_written(bars: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bars, tmp_path / "bars"))
    (folder / "middle/3.png").write_bytes(b"?")
    (folder / "empty").mkdir()
    said = vivi_here("evaluate", "knn", *ENCODER, "--data", folder, "--out", tmp_path / "results")
    notes = only_result(tmp_path / "results").notes
    assert len(notes) == 3 and all(line in said for line in notes)
    assert "left out 1 class folder without images: 'empty'" in notes
    assert any("left out 1 image that cannot be read" in line and "middle/3.png" in line for line in notes)


def test_a_folder_called_like_a_task_of_vtab_is_the_users_own(bars: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bars, tmp_path / "cifar"))
    (folder / "middle").rename(folder / "airplane")  # RESISC45 has such a class
    said = vivi_here("evaluate", "knn", *ENCODER, "--data", folder, "--out", tmp_path / "results", "--tasks", "cifar")
    result = only_result(tmp_path / "results")
    assert (result.task, result.group) == ("cifar", "own") and "own tasks" in said and "of VTAB" not in said


def test_where_nothing_fits_the_layouts_are_named(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("none")
    with pytest.raises(UserError) as caught:
        vivi_here("evaluate", "knn", *ENCODER, "--data", tmp_path, "--out", tmp_path / "results")
    assert str(caught.value) == (
        f"{tmp_path} holds no folder with images; give a folder with a folder of images for each class, or a list "
        "(.txt of lines `path label`, .csv of path,label); or a folder of tasks in VTAB-1k layout "
        "(TASK/train800.txt, val200.txt, train800val200.txt, test.txt), or of VTAB's data sets (vivi evaluate vtab "
        "--check says which)"
    )


def test_tasks_in_vtab_layout_are_read_as_before(bars: Path, tmp_path: Path) -> None:
    """Also where class folders lie beside them."""
    write_task(tmp_path / "data" / "mine")
    shutil.copytree(bars, tmp_path / "data" / "bars")
    vivi_here("evaluate", "knn", *ENCODER, "--data", tmp_path / "data", "--out", tmp_path / "results")
    result = only_result(tmp_path / "results")
    assert (result.task, result.split, result.notes) == ("mine", "lists", ())


def test_wrong_data_is_refused_before_torch_is_imported(bars: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "vivi", "evaluate", "knn", *ENCODER, "--data"]
    wrong = bars / "middle/1.png"
    done = subprocess.run([*command, str(wrong)], capture_output=True, text=True, timeout=60, check=False)
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert line.startswith(f"error: there is no folder or list {wrong}; give a folder with a folder of images")
    assert done.returncode == 1 and not done.stdout and not re.search(r"\btorch$", done.stderr, re.MULTILINE)


def test_check_says_how_images_would_be_split(bars: Path, tmp_path: Path) -> None:
    said = vivi_here("evaluate", "vtab", "--check", bars)
    assert "9 to test on, split by seed 0" in said and "Caltech101" not in said
    said = vivi_here("evaluate", "vtab", "--check", tmp_path)
    assert "Caltech101" in said and f"{tmp_path} holds no folder with images" in said


@pytest.mark.parametrize(("right", "count"), [(0, 10), (246, 390), (10, 10), (1, 2)])
def test_the_interval_has_the_shares_that_such_a_count_does_not_contradict(right: int, count: int) -> None:
    """Wilson's: the shares p at whose ends the count lies 1.96 standard deviations from its mean."""
    low, high = wilson(right / count, count)
    for end in (low, high):
        if 0 < end < 1:
            deviation = (count * end * (1 - end)) ** 0.5
            assert abs(abs(right - count * end) / deviation - 1.96) < 1e-6
    assert 0 <= low <= right / count <= high <= 1
