"""Labelled images in parts to train, to validate and to test on: as users split them, or split here."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from small_tasks import write_class_folders, write_image

from vivi.data.images import LabelledImages, find_images, find_test_images
from vivi.data.splits import LabelledSplit, find_split
from vivi.runtime.errors import UserError


def names(images: LabelledImages) -> set[str]:
    return set(images.names)


def counts(images: LabelledImages) -> dict[str, int]:
    return dict(Counter(images.classes[label] for label in images.labels))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_class_folders(tmp_path_factory.mktemp("data") / "pets", {"cat": 20, "dog": 11, "owl": 3})


def test_a_fifth_of_each_class_is_to_test_on_and_a_fifth_of_the_rest_to_validate_on(pets: Path) -> None:
    split = find_split(pets)
    assert split.classes == ("cat", "dog", "owl")
    assert counts(split.test) == {"cat": 4, "dog": 2, "owl": 1}
    assert counts(split.validation) == {"cat": 3, "dog": 2, "owl": 1}
    assert counts(split.train) == {"cat": 13, "dog": 7, "owl": 1}
    assert names(split.train) | names(split.validation) | names(split.test) == names(find_images(pets))
    assert split.notes == () and split.summary() == (
        "pets: 3 classes ('cat', 'dog', 'owl'), 27 images to train on (6 of them to choose settings by), 7 to test "
        "on, split by seed 0; give train/ and test/ folders for your own split"
    )


def test_the_seed_decides_and_another_image_moves_one_of_its_class_at_most(pets: Path, tmp_path: Path) -> None:
    first, again, other = find_split(pets), find_split(pets), find_split(pets, seed=1)
    assert names(first.test) == names(again.test) and names(first.train) == names(again.train)
    assert names(first.test) != names(other.test) and "split by seed 1" in other.how
    more, random = Path(shutil.copytree(pets, tmp_path / "more")), np.random.default_rng(9)
    for number in range(8):
        before = find_split(more)
        write_image(more / "cat" / f"new{number}.png", 0, 3, random)
        after = find_split(more)
        moved = names(before.test) ^ names(after.test)
        assert len(moved - {f"cat/new{number}.png"}) <= 1 and all(name.startswith("cat/") for name in moved)


def test_two_images_per_class_are_enough(tmp_path: Path) -> None:
    split = find_split(write_class_folders(tmp_path / "few", {"a": 2, "b": 2}))
    assert counts(split.train) == counts(split.test) == {"a": 1, "b": 1} and not len(split.validation)
    assert split.notes == ("no class has an image to spare: settings are chosen by the images that are trained on",)


def test_classes_of_one_image_cannot_be_split(tmp_path: Path) -> None:
    split = find_split(write_class_folders(tmp_path / "some", {"a": 5, "b": 4, "lone": 1}))
    assert split.classes == ("a", "b") and len(split.notes) == 1
    assert split.notes[0].startswith("left out 1 class name with one image, ") and "'lone'" in split.notes[0]
    alone = write_class_folders(tmp_path / "alone", {"a": 5, "b": 1, "c": 1})
    line = refusal(lambda: find_split(alone))
    assert f"{alone} has less than two classes to learn" in line and "left out 2 class names" in line
    # Where users say what is to test on, one image is enough to train on.
    own = write_class_folders(tmp_path / "own" / "train", {"a": 5, "b": 1}).parent
    write_class_folders(own / "test", {"a": 1, "b": 1}, seed=1)
    assert counts(find_split(own).train) == {"a": 4, "b": 1}


@pytest.mark.parametrize("test", ["test", "val", "validation", "Test", "valid"])
def test_folders_of_train_and_test_are_a_split(tmp_path: Path, test: str) -> None:
    own = write_class_folders(tmp_path / "own" / "train", {"a": 6, "b": 5}).parent
    write_class_folders(own / test, {"a": 2, "b": 3, "c": 1}, seed=1)
    split = find_split(own)
    assert split.test.root.name == test and counts(split.test) == {"a": 2, "b": 3}
    assert counts(split.train) == {"a": 5, "b": 4} and counts(split.validation) == {"a": 1, "b": 1}
    assert split.how == "split as you gave them" and split.name == "own"
    assert split.notes == (f"left out 1 class name of {own / test} that training does not know: 'c'",)


def test_a_validation_folder_beside_a_test_folder_validates(tmp_path: Path) -> None:
    for seed, part in enumerate(("train", "val", "test")):
        write_class_folders(tmp_path / "own" / part, {"a": 3 + seed, "b": 4}, seed)
    split = find_split(tmp_path / "own")
    parts = (split.train, split.validation, split.test)
    assert [part.root.name for part in parts] == ["train", "val", "test"]
    assert [len(part) for part in parts] == [7, 8, 9] and split.notes == ()


def test_a_csv_file_is_split_here_or_by_its_column(pets: Path, tmp_path: Path) -> None:
    shutil.copytree(pets, tmp_path / "pets")
    rows = [(f"pets/{name}", name[:3]) for name in find_images(pets).names]
    (tmp_path / "labels.csv").write_text("path,label\n" + "".join(f"{path},{label}\n" for path, label in rows))
    split = find_split(tmp_path / "labels.csv")
    assert counts(split.test) == {"cat": 4, "dog": 2, "owl": 1} and split.name == f"{tmp_path.name}-labels"
    assert split.how.endswith("give a column split of train and test for your own split")
    words = ["train", "Train", "test", "val", "TRAIN", "else"]
    lines = [f"{path},{label},{words[k % 6]}\n" for k, (path, label) in enumerate(rows)]
    (tmp_path / "own.csv").write_text("path,label,split\n" + "".join(lines))
    split = find_split(tmp_path / "own.csv")
    for part, kinds in ((split.train, (0, 1, 4)), (split.test, (2,)), (split.validation, (3,))):
        assert names(part) == {path for k, (path, _) in enumerate(rows) if k % 6 in kinds}
    assert len(split.notes) == 1 and "whose split is none of train, val, valid, validation, test" in split.notes[0]
    # Training learns from the same rows, and never from those to test on.
    assert names(find_images(tmp_path / "own.csv")) == names(split.train)
    watched = find_test_images(tmp_path / "own.csv", None, split.classes)
    assert watched is not None and names(watched) == names(split.validation)


def test_images_that_cannot_be_read_are_left_out(pets: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pets, tmp_path / "pets"))
    jpeg = (folder / "cat/0.jpg").read_bytes()
    (folder / "cat/0.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (folder / "dog/1.png").write_bytes(b"")
    (folder / "owl/words.jpg").write_text("no image")
    split = find_split(folder)
    assert len(split.train) + len(split.validation) + len(split.test) == 32
    assert len(split.notes) == 1
    assert split.notes[0].startswith("left out 3 images that cannot be read: the first is ")
    assert repr(str(folder / "cat/0.jpg")) in split.notes[0]
    for path in find_images(folder).paths():
        path.write_bytes(b"nothing")
    assert f"none of the 35 images of {folder} can be read" in refusal(lambda: find_split(folder))


def test_copies_of_an_image_are_not_parted(pets: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(pets, tmp_path / "pets"))
    for path in find_images(folder).paths():
        shutil.copy(path, path.with_stem(path.stem + " copy"))
    shutil.copy(folder / "cat/0.jpg", folder / "dog/a cat.jpg")

    def contents(split: LabelledSplit, part: str) -> set[bytes]:
        return {path.read_bytes() for path in getattr(split, part).paths()}

    for seed in range(5):
        split = find_split(folder, seed)
        trained, validated, tested = (contents(split, part) for part in ("train", "validation", "test"))
        assert not tested & (trained | validated) and not trained & validated
        assert 8 <= len(split.test) <= 14
        assert split.notes == ("35 images are copies of others (identical files), all on one side of the split",)


def test_test_images_that_are_trained_on_are_counted(tmp_path: Path) -> None:
    own = write_class_folders(tmp_path / "own" / "train", {"a": 6, "b": 5}).parent
    write_class_folders(own / "test", {"a": 2, "b": 3}, seed=1)
    shutil.copy(own / "train/a/0.jpg", own / "test/a/other name.jpg")
    shutil.copy(own / "train/b/1.png", own / "test/b/1.png")
    (note,) = find_split(own).notes
    assert note.startswith("2 of the 6 test images are also trained on (identical files)")


def test_all_copies_of_one_image_leave_none_to_test_on(tmp_path: Path) -> None:
    folder = write_class_folders(tmp_path / "same", {"a": 1, "b": 1})
    for path in find_images(folder).paths():
        shutil.copy(path, path.with_stem("copy"))
    assert "has no image to test on" in refusal(lambda: find_split(folder))


def test_what_else_lies_in_a_folder_is_handled(pets: Path, tmp_path: Path) -> None:
    folder = tmp_path / "odd [red]"
    shutil.copytree(pets / "cat", folder / "große Katze, 1/2020/deep")
    shutil.copytree(pets / "dog", folder / "dog\n2")
    (folder / "linked").symlink_to(pets / "owl")
    (folder / "linked to nothing").symlink_to(tmp_path / "nowhere")
    (folder / "empty").mkdir()
    shutil.copy(pets / "cat/0.jpg", folder / ".hidden.jpg")
    shutil.copy(pets / "cat/0.jpg", folder / "dog\n2" / "._0.jpg")
    (folder / "dog\n2" / "notes.txt").write_text("a good dog")
    os.mkfifo(folder / "dog\n2" / "pipe.jpg")
    split = find_split(folder)
    assert split.classes == ("dog\n2", "große Katze, 1", "linked")
    assert counts(split.test) == {"große Katze, 1": 4, "dog\n2": 2, "linked": 1}
    assert [note.partition(":")[0] for note in split.notes] == [
        "left out 1 class folder without images",
        "left out 3 files other than images",
    ]
    assert not any("\n" in line for line in (split.summary(), *split.notes))
