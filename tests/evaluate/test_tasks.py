"""Tasks: from lists, from original data sets, under each protocol; their results as files; --check."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import vivi_here
from small_tasks import COUNTS, write_task
from torch import Tensor

from vivi.evaluate.results import Result, Score, Setting, Trial, read_results, write_result
from vivi.evaluate.settings import Sweep
from vivi.evaluate.tasks import VTAB, definition
from vivi.evaluate.tasks.examples import Examples, Original, Task
from vivi.evaluate.tasks.find import find_tasks
from vivi.evaluate.tasks.lists import read_list, read_task
from vivi.evaluate.tasks.originals import original_task
from vivi.evaluate.vtab import sweep_seconds
from vivi.runtime.errors import UserError


def test_there_are_nineteen_tasks_in_groups_of_seven_four_and_eight() -> None:
    groups = [task.group for task in VTAB]
    assert [groups.count(group) for group in ("natural", "specialized", "structured")] == [7, 4, 8]
    assert len({name for task in VTAB for name in (task.name, *task.folders)}) == 19 + sum(
        len(t.folders) for t in VTAB
    )


def test_a_task_is_known_by_its_folder(tmp_path: Path) -> None:
    for name, expected in (("oxford_iiit_pet", "pets"), ("dsprites_ori", "dsprites_orientation"), ("pets", "pets")):
        known = definition(name)
        assert known is not None and known.name == expected
    assert definition("cifar10") is None
    task = read_task(write_task(tmp_path / "clevr_dist", classes=3))
    assert (task.name, task.title, task.group, task.classes) == ("clevr_distance", "Clevr-Dist", "structured", 6)


def test_a_task_has_the_images_of_its_lists(tmp_path: Path) -> None:
    task = read_task(write_task(tmp_path / "bars"))
    assert (task.name, task.classes, task.group, task.split) == ("bars", 4, "own", "lists")
    assert [len(part) for part in task.parts().values()] == [16, 8, 24, 12]
    assert [*task.final.images] == [*task.sweep.images, *task.validation.images]
    assert task.test.labels.tolist() == [0, 1, 2, 3] * 3


def test_only_lists_of_the_right_sizes_are_exact(tmp_path: Path) -> None:
    folder = tmp_path / "dtd"
    folder.mkdir()
    sizes = {"train800": 800, "val200": 200, "train800val200": 1000, "test": 1880}
    for name, count in sizes.items():
        (folder / f"{name}.txt").write_text("".join(f"images/{k}.jpg {k % 47}\n" for k in range(count)))
    assert read_task(folder).split == "lists"
    (folder / "test.txt").write_text("images/0.jpg 0\n")
    assert read_task(folder).split == "own split"


def test_classes_are_those_of_classes_txt(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "bars")
    (folder / "classes.txt").write_text("".join(f"class {k}\n" for k in range(7)))
    assert read_task(folder).classes == 7
    (folder / "classes.txt").write_text("only one\n")
    with pytest.raises(UserError, match=r"train800\.txt line 2 is .* 1'; it must be .* a label from 0 to 0$"):
        read_task(folder)
    (folder / "classes.txt").write_text("\n")
    with pytest.raises(UserError, match=r"classes\.txt names no class"):
        read_task(folder)


def test_the_checksum_changes_with_labels_and_files(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "bars")
    first = read_task(folder).checksum()
    assert first == read_task(folder).checksum()
    path = folder / "images" / "test" / "000000.png"
    path.write_bytes(path.read_bytes() + b" ")
    second = read_task(folder).checksum()
    (folder / "val200.txt").write_text((folder / "val200.txt").read_text().replace(" 1\n", " 2\n"))
    assert len({first, second, read_task(folder).checksum()}) == 3


def test_lists_may_have_spaces_in_names_and_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"images/a b.jpg 3\r\n\n  \nimages/c.jpg\t0\n")
    examples = read_list(tmp_path / "a.txt")
    assert examples.images == (tmp_path / "images/a b.jpg", tmp_path / "images/c.jpg")
    assert examples.labels.tolist() == [3, 0]


@pytest.mark.parametrize("line", ["images/a.jpg", "images/a.jpg cat", "images/a.jpg -1", "images/a.jpg 1.5", "7"])
def test_a_bad_line_of_a_list_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "test.txt").write_text(f"images/b.jpg 0\n{line}\n")
    with pytest.raises(UserError, match=r"test\.txt line 2 is ") as raised:
        read_list(tmp_path / "test.txt")
    assert line in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["../a.jpg", "images/../../a.jpg", "images/../a.jpg", "/etc/passwd", ".."])
def test_a_list_names_images_below_its_folder_only(tmp_path: Path, name: str) -> None:
    (tmp_path / "test.txt").write_text(f"images/b..c.jpg 0\n{name} 0\n")
    with pytest.raises(UserError, match=r"test\.txt line 2 is .* the path of an image below the list's folder"):
        read_list(tmp_path / "test.txt")


def test_a_link_below_the_folder_of_a_list_may_lead_anywhere(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "elsewhere")
    (tmp_path / "task").mkdir()
    for path in folder.glob("*.txt"):
        (tmp_path / "task" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "task/images").symlink_to(folder / "images")
    assert read_task(tmp_path / "task").checksum() == read_task(folder).checksum()


def test_a_missing_list_an_empty_list_and_a_missing_task_are_each_one_line(tmp_path: Path) -> None:
    write_task(tmp_path / "task")
    (tmp_path / "task" / "val200.txt").write_text("\n")
    with pytest.raises(UserError, match=r"val200\.txt lists no images"):
        read_task(tmp_path / "task")
    (tmp_path / "task" / "val200.txt").unlink()
    with pytest.raises(UserError, match=r"val200\.txt cannot be read \(No such file"):
        read_task(tmp_path / "task")
    with pytest.raises(UserError, match="elsewhere is no folder of a task"):
        read_task(tmp_path / "elsewhere")


@pytest.mark.parametrize(
    "line", ["a.jpg 99999999999999999999999", "a.jpg 2000000000", "a\0.jpg 1", f"a.jpg {'9' * 5000}"]
)
def test_impossible_labels_and_names_are_one_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "test.txt").write_text(f"b.jpg 0\n{line}\n")
    with pytest.raises(UserError, match=r"test\.txt line 2") as caught:
        read_list(tmp_path / "test.txt")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_list_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_bytes(b"\xef\xbb\xbfimages/a.jpg 1\r\n")
    assert read_list(tmp_path / "test.txt").images == (tmp_path / "images/a.jpg",)


def test_folders_of_images_without_lists_are_no_tasks(tmp_path: Path) -> None:
    write_task(tmp_path / "mine")
    (tmp_path / "CLEVR_v1.0" / "images").mkdir(parents=True)
    (tmp_path / "images").mkdir()
    assert [task.name for task in find_tasks(tmp_path, "v2", (), {}).tasks] == ["mine"]


def test_two_folders_of_one_task_are_refused(tmp_path: Path) -> None:
    for name in ("svhn", "svhn_cropped"):
        write_task(tmp_path / name)
    with pytest.raises(UserError, match=r"svhn and .*svhn_cropped are the same task, svhn; take one of them away"):
        find_tasks(tmp_path, "v2", (), {})


def test_a_group_of_no_task_is_refused(tmp_path: Path) -> None:
    write_task(tmp_path / "mine")
    write_task(tmp_path / "clevr_dist")
    for name in ("mine", "clevr_dist", "clevr_distance"):
        groups = {task.name: task.group for task in find_tasks(tmp_path, "v2", (), {name: "natural"}).tasks}
        assert groups[name.replace("dist", "distance") if name.endswith("dist") else name] == "natural"
    with pytest.raises(UserError, match="--groups has 'nine', which is no task in"):
        find_tasks(tmp_path, "v2", (), {"nine": "natural"})


# --- protocols ---


def numbered(first: int, count: int) -> Examples:
    """Images that know which ones they are."""
    images = [
        torch.tensor([[[k // 256]], [[k % 256]], [[0]]], dtype=torch.uint8) for k in range(first, first + count)
    ]
    return Examples(images, torch.arange(first, first + count) % 5)


def which(examples: Examples) -> list[int]:
    found = []
    for image, label in zip(examples.images, examples.labels.tolist(), strict=True):
        assert isinstance(image, Tensor)
        number = int(image[0]) * 256 + int(image[1])
        assert label == number % 5
        found.append(number)
    return found


def original() -> Original:
    return Original(numbered(0, 3000), numbered(3000, 700), numbered(4000, 50))


def test_version_1_draws_1000_of_train_and_another_1000_of_both() -> None:
    known = VTAB[0]
    task, again = (original_task(known, original(), "v1") for _ in range(2))
    sweep, final = which(task.sweep), which(task.final)
    assert len(set(sweep)) == 1000 and max(sweep) < 3000
    assert which(task.validation) == list(range(3000, 3700)) and which(task.test) == list(range(4000, 4050))
    assert len(set(final)) == 1000 and max(final) >= 3000 and max(final) < 3700
    assert (which(again.sweep), which(again.final)) == (sweep, final)
    assert task.split == "own split"


def test_version_2_draws_800_and_200_and_joins_them() -> None:
    task = original_task(VTAB[0], original(), "v2")
    sweep, validation = which(task.sweep), which(task.validation)
    assert len(set(sweep)) == 800 and max(sweep) < 3000
    assert len(set(validation)) == 200 and min(validation) >= 3000
    assert which(task.final) == sweep + validation


def test_the_full_regime_takes_everything() -> None:
    task = original_task(VTAB[0], original(), "full")
    assert which(task.sweep) == list(range(3000)) and which(task.final) == list(range(3700))


def test_original_data_that_is_too_small_or_has_other_classes_is_told() -> None:
    nothing = numbered(0, 0)
    with pytest.raises(UserError, match="Caltech101 has too few images: none is left for validation"):
        original_task(VTAB[0], Original(numbered(0, 9), nothing, numbered(9, 9)), "full")
    many = Examples(numbered(0, 9).images, torch.arange(9) * 20)
    with pytest.raises(UserError, match="Caltech101 has 161 classes, 102 are known"):
        original_task(VTAB[0], Original(many, many, many), "v2")


def write_cifar100(folder: Path, seed: int = 0) -> None:
    """The binary version, of 40 and 10 images whose shade is their fine label."""
    folder.mkdir(parents=True)
    for name, count in (("train.bin", 40), ("test.bin", 10)):
        labels = np.arange(count) % 3
        records = [bytes([0, label]) + bytes([80 * label]) * 3072 for label in labels]
        (folder / name).write_bytes(b"".join(records))


@pytest.mark.parametrize("protocol", ["v1", "v2", "full"])
def test_original_data_sets_are_evaluated_under_every_protocol(tmp_path: Path, protocol: str) -> None:
    write_cifar100(tmp_path / "data" / "cifar-100-binary")
    words = ["--encoder", "untrained:test_resnet", "--size", "32", "--device", "cpu", "--batch", "8", "--seeds", "1"]
    flags = ["--protocol", protocol, "--schedules", "2", "--learning-rates", "0.01"]
    vivi_here("evaluate", "vtab", *words, *flags, "--data", tmp_path / "data", "--out", tmp_path / "results")
    (result,) = read_results(tmp_path / "results")[0]
    assert (result.task, result.protocol, result.split, result.classes) == ("cifar100", protocol, "own split", 100)
    assert result.images == {"sweep": 36, "validation": 4, "final": 40, "test": 10}


def test_lists_come_before_originals_in_version_2(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "cifar-100-binary")
    (task,) = find_tasks(tmp_path, "v2", (), {}).tasks
    assert len(task.test) == 10
    write_task(tmp_path / "cifar")
    (task,) = find_tasks(tmp_path, "v2", (), {}).tasks
    assert len(task.test) == COUNTS["test"]
    (task,) = find_tasks(tmp_path, "v1", (), {}).tasks
    assert len(task.test) == 10


def test_check_says_what_is_there_what_is_missing_and_where_to_get_it(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "cifar-100-binary")
    write_task(tmp_path / "svhn")
    write_task(tmp_path / "mine")
    (write_task(tmp_path / "dtd") / "test.txt").unlink()
    said = vivi_here("evaluate", "vtab", "--check", tmp_path)
    lines = {line.split("│")[1].strip(): line for line in said.splitlines() if line.startswith("│")}
    assert len(lines) == 20
    assert "original" in lines["CIFAR-100"] and "36 / 4 / 10" in lines["CIFAR-100"]
    assert "45,000 / 5,000 / 10,000" in lines["CIFAR-100"]
    assert "lists, own split" in lines["SVHN"] and "16 / 8 / 24 / 12" in lines["SVHN"]
    assert "800 / 200 / 1,000 / 26,032" in lines["SVHN"]
    assert "lists" in lines["mine"] and "damaged" in lines["DTD"] and "nothing" in lines["Pets"]
    assert "test.txt cannot be read" in said and "robots.ox.ac.uk" in said and "TFDS prepares it as kitti/3.*" in said
    assert "0 of VTAB's 19 tasks are exact, 2 on a split of their own, 17 missing or damaged; 1 of your own" in said


def test_an_empty_folder_has_no_task_and_says_how_to_look(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no folder with images; .*VTAB-1k layout"):
        find_tasks(tmp_path, "v2", (), {})


# --- results ---


def some_result(name: str = "an encoder", task: str = "svhn") -> Result:
    score = Score((0.5, 0.75, 0.25), Setting(0.1, 2500), "because")
    trials = (Trial(Setting(0.1, 2500), 0.5), Trial(Setting(0.01, 2500), 0.25))
    return Result(name, "vtab", "v2", task, task.upper(), "natural", 10, score, sweep=trials, versions={"torch": "2"})


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    results = [some_result(), some_result("a/b <c>"), some_result(task="mine")]
    paths = [write_result(tmp_path, result) for result in results]
    assert len(set(paths)) == 3 and all(path.parent == tmp_path for path in paths)
    found, problems = read_results(tmp_path)
    assert not problems and sorted(found, key=repr) == sorted(results, key=repr)
    assert found[0].score.median == 0.5


@pytest.mark.parametrize(
    "damage",
    [
        {"score": {"accuracies": []}},
        {"score": {"accuracies": [1.5]}},
        {"format": 99},
        {"group": "none"},
        {"benchmark": "chess"},
        {"encoder": 3},
        {"surprise": 1},
        {"sweep": [{"accuracy": 1}]},
    ],
)
def test_a_damaged_result_is_named_and_the_others_are_read(tmp_path: Path, damage: dict[str, object]) -> None:
    write_result(tmp_path, some_result())
    path = write_result(tmp_path, some_result(task="bad"))
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    (tmp_path / "text.json").write_text("{")
    found, problems = read_results(tmp_path)
    assert [result.task for result in found] == ["svhn"]
    assert len(problems) == 2 and all("is no result of vivi evaluate" in line for line in problems)
    assert not any("\n" in line for line in problems)


# --- the estimate ---


def slow_makespan(jobs: list[float], devices: int) -> float:
    """Second by second."""
    clock, running = 0, [0.0] * devices
    waiting = list(jobs)
    while waiting or any(running):
        running = [left if left > 0 else (waiting.pop(0) if waiting else 0.0) for left in running]
        running = [max(0.0, left - 1) for left in running]
        clock += 1
    return clock


def test_the_estimate_is_that_of_a_simulation() -> None:
    def some(count: int) -> Examples:
        return Examples((), torch.zeros(count, dtype=torch.int64))

    tasks = [
        Task(str(k), str(k), "own", 2, "lists", some(30), some(0), some(40), some(0))
        for k in range(random.Random(0).randint(3, 9))
    ]
    sweep = Sweep(schedules=(10, 20), batch=512, seeds=2)
    for devices in (1, 3, 8):
        # In batches clipped to all images there are, 10 images a second.
        first = [steps * 30 / 10 for _ in tasks for _ in range(2) for steps in (10, 20)]
        second = [20 * 40 / 10 for _ in tasks for _ in range(2)]
        expected = slow_makespan(first, devices) + slow_makespan(second, devices)
        assert sweep_seconds(tasks, sweep, (0.1, 0.01), 10, devices) == pytest.approx(expected)
