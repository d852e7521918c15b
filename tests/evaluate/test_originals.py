"""VTAB's data sets from original files: the splits, and those that are files of images."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vivi.evaluate.examples import Examples, Original
from vivi.evaluate.originals import SOURCES, cifar, class_folders, clevr, dsprites, kitti, listed, look, read_original
from vivi.evaluate.originals import smallnorb as norb
from vivi.evaluate.originals import svhn as svhn_module
from vivi.evaluate.originals.deal import deal, sizes
from vivi.evaluate.originals.retinopathy import read_grades
from vivi.evaluate.tasks import VTAB
from vivi.runtime.errors import UserError

Sizes = tuple[int, ...]


def picture(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = {".png": "PNG"}.get(path.suffix.lower(), "JPEG")
    Image.new("RGB", (5, 4), (shade, 0, 0)).save(path, kind)
    return path


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def error(name: str, data: Path) -> str:
    """What is said when a data set cannot be read; both ways of looking at it say it in one line."""
    with pytest.raises(UserError) as raised:
        read_original(name, data)
    found = look(name, data)
    for line in (str(raised.value), found.problem, found.where, *found.missing):
        assert "\n" not in line
    return str(raised.value)


def labelled(examples: Examples) -> dict[str, int]:
    """Label by the image's file."""
    paths = [image for image in examples.images if isinstance(image, Path) and image.is_file()]
    return {path.name: label for path, label in zip(paths, examples.labels.tolist(), strict=True)}


def together(original: Original) -> dict[str, int]:
    """All images and their labels; no image lies in two splits."""
    parts = [labelled(part) for part in (original.train, original.val, original.test)]
    whole = {name: label for part in parts for name, label in part.items()}
    assert len(whole) == sum(len(part) for part in parts)
    return whole


def lengths(original: Original) -> Sizes:
    return len(original.train), len(original.val), len(original.test)


# --- deals


def caltech_sizes() -> Sizes:
    counts = [31, 800] + [83] * 99 + [96]  # 102 classes, 9144 images
    train, test = class_folders.deal_caltech101(counts)
    return (*sizes(len(train), class_folders.CALTECH101_SHARES), len(test))


DEALT: dict[str, Callable[[], Sizes]] = {
    "caltech101": caltech_sizes,
    "cifar100": lambda: (*sizes(50000, cifar.SHARES), 10000),
    "pets": lambda: (*sizes(3680, listed.PETS_SHARES), 3669),
    "svhn": lambda: (*sizes(73257, svhn_module.SHARES), 26032),
    "sun397": lambda: tuple(sizes(108754 - 1, class_folders.SUN397_SHARES)),
    "eurosat": lambda: tuple(sizes(27000, class_folders.EUROSAT_SHARES)),
    "resisc45": lambda: tuple(sizes(45 * 700, class_folders.RESISC45_SHARES)),
    "clevr_count": lambda: (*sizes(70000, clevr.SHARES), 15000),
    "clevr_distance": lambda: (*sizes(70000, clevr.SHARES), 15000),
    "kitti_distance": lambda: tuple(sizes(7481, kitti.SHARES)),
    "dsprites_location": lambda: tuple(sizes(3 * 6 * 40 * 32 * 32, dsprites.SHARES)),
    "dsprites_orientation": lambda: tuple(sizes(3 * 6 * 40 * 32 * 32, dsprites.SHARES)),
    "smallnorb_azimuth": lambda: (24300, *sizes(24300, norb.SHARES)),
    "smallnorb_elevation": lambda: (24300, *sizes(24300, norb.SHARES)),
}
OFFICIAL = {"dtd", "flowers102", "patch_camelyon", "diabetic_retinopathy", "dmlab"}
"""Nothing is dealt: the authors' files are the splits."""


def test_complete_data_sets_are_dealt_in_vtabs_sizes() -> None:
    assert set(DEALT) | OFFICIAL == {task.name for task in VTAB} == set(SOURCES)
    for task in VTAB:
        if task.name not in OFFICIAL:
            assert DEALT[task.name]() == (task.train, task.val, task.test), task.name


@pytest.mark.parametrize("shares", [(9, 1), (4, 1), (3, 1, 1), (8, 1, 1), (1, 1), (6347, 423, 711)])
def test_a_deal_gives_every_image_to_one_split_in_proportion(shares: tuple[int, ...]) -> None:
    for count in (0, 1, 2, 3, 7, 10, 99, 1000):
        parts = deal(count, shares)
        assert sorted(index for part in parts for index in part) == list(range(count))
        assert [len(part) for part in parts] == sizes(count, shares)
        assert all(part == sorted(part) for part in parts)
        for part, share in zip(parts, shares, strict=True):
            assert abs(len(part) - count * share / sum(shares)) <= 1
    assert deal(1000, shares) == deal(1000, shares)
    assert deal(1000, shares)[0] != list(range(len(deal(1000, shares)[0]))), "shuffled"


def test_a_deal_stays_the_same_for_ever() -> None:
    assert deal(10, (3, 1, 1)) == [[2, 5, 6, 7, 8, 9], [0, 3], [1, 4]]


# --- what every data set has in common


@pytest.mark.parametrize("name", [task.name for task in VTAB])
def test_an_empty_folder_says_what_is_missing_and_where_to_get_it(name: str, tmp_path: Path) -> None:
    message = error(name, tmp_path)
    found = look(name, tmp_path)
    assert found.missing and found.counts is None and found.problem == ""
    assert found.place.is_relative_to(tmp_path)
    assert "https://" in found.where or "http://" in found.where
    assert str(found.place) in message and found.missing[0] in message and found.where in message
    assert look(name, tmp_path / "nowhere").missing == found.missing


def test_a_data_set_is_found_in_its_usual_places(tmp_path: Path) -> None:
    for place in ("eurosat/2750", "eurosat", "EuroSAT_RGB", "."):
        data = tmp_path / place.replace("/", "-") / "data"
        for index in range(5):
            picture(data / place / "AnnualCrop" / f"AnnualCrop_{index}.jpg")
        assert look("eurosat", data).place == data / place
        assert lengths(read_original("eurosat", data)) == (3, 1, 1)


# --- one folder for each class


def class_tree(folder: Path, counts: dict[str, int], suffix: str = ".jpg") -> None:
    for name, count in counts.items():
        for index in range(count):
            picture(folder / name / f"{name.replace('/', '_')}_{index}{suffix}")


@pytest.mark.parametrize(
    ("name", "folder", "classes"),
    [
        ("eurosat", "eurosat/2750", ["AnnualCrop", "Forest", "SeaLake"]),
        ("resisc45", "NWPU-RESISC45", ["airplane", "beach", "wetland"]),
        ("sun397", "SUN397", ["a/abbey", "c/church/indoor", "c/church/outdoor"]),
    ],
)
def test_classes_are_folders(name: str, folder: str, classes: list[str], tmp_path: Path) -> None:
    class_tree(tmp_path / folder, {classes[0]: 20, classes[2]: 40})
    class_tree(tmp_path / folder, {classes[1]: 40}, suffix=".JPG")
    text(tmp_path / folder / classes[0] / ".DS_Store", "?")
    text(tmp_path / folder / classes[0] / "._x.jpg", "?")
    text(tmp_path / folder / "README.txt", "?")
    original = read_original(name, tmp_path)
    shares = {"sun397": (70, 10, 20)}.get(name, (60, 20, 20))
    assert lengths(original) == shares
    for file, label in together(original).items():
        assert file.startswith(classes[label].replace("/", "_"))
    assert Counter(together(original).values()) == {0: 20, 1: 40, 2: 40}
    assert look(name, tmp_path).counts == dict(zip(("train", "val", "test"), shares, strict=True))
    again = read_original(name, tmp_path)
    assert list(again.val.images) == list(original.val.images)
    assert list(pickle.loads(pickle.dumps(original.val.images))) == list(original.val.images)


def test_a_folder_without_images_is_told(tmp_path: Path) -> None:
    (tmp_path / "NWPU-RESISC45" / "airplane").mkdir(parents=True)
    assert re.search(r"NWPU-RESISC45 has no images", error("resisc45", tmp_path))


def test_vtab_leaves_out_one_bad_image_of_sun397(tmp_path: Path) -> None:
    class_tree(tmp_path / "SUN397", {"a/abbey": 10})
    picture(tmp_path / "SUN397/c/church/outdoor/sun_bhenjvsvrtumjuri.jpg")
    picture(tmp_path / "SUN397/c/church/outdoor/sun_good.jpg")
    names = together(read_original("sun397", tmp_path))
    assert len(names) == 11 and names["sun_good.jpg"] == 1


def test_caltech101_trains_on_30_of_each_class_and_knows_the_background(tmp_path: Path) -> None:
    folder = tmp_path / "caltech101" / "101_ObjectCategories"
    counts = {"accordion": 35, "BACKGROUND_Google": 40, "Faces": 31, "yin_yang": 9}
    class_tree(folder, counts)
    text(folder / "BACKGROUND_Google" / "tmp", "not an image")
    original = read_original("caltech101", tmp_path)
    assert lengths(original) == (83, 10, 22)  # 30 + 30 + 30 + 3 of the short class, and 5 + 10 + 1 + 6
    for file, label in together(original).items():
        assert file.startswith(list(counts)[label])
    learn = Counter(original.train.labels.tolist()) + Counter(original.val.labels.tolist())
    assert learn == {0: 30, 1: 30, 2: 30, 3: 3}


# --- lists of the authors


def write_dtd(folder: Path) -> dict[str, list[str]]:
    names = [(name, index) for name in ("zigzag", "banded") for index in range(3)]
    lists = {
        split: [f"{name}/{name}_{split}{index}.jpg" for name, index in names] for split in ("train", "val", "test")
    }
    for split, lines in lists.items():
        text(folder / "labels" / f"{split}1.txt", "\n".join(lines) + "\n")
        text(folder / "labels" / f"{split}2.txt", "another fold")
        for line in lines:
            picture(folder / "images" / line)
    return lists


def test_dtd_is_its_first_official_split(tmp_path: Path) -> None:
    lists = write_dtd(tmp_path / "dtd" / "dtd")
    original = read_original("dtd", tmp_path)
    for split, part in zip(("train", "val", "test"), (original.train, original.val, original.test), strict=True):
        assert labelled(part) == {line.split("/")[1]: int(line.startswith("zigzag")) for line in lists[split]}
    (tmp_path / "dtd/dtd/images/banded/banded_val1.jpg").unlink()
    assert re.search(r"banded_val1.jpg is listed but missing", error("dtd", tmp_path))
    assert "listed but missing" in look("dtd", tmp_path).problem
    text(tmp_path / "dtd/dtd/labels/val1.txt", "banded_0001.jpg\n")
    assert re.search(r"val1.txt is damaged.*banded_0001.jpg", error("dtd", tmp_path))
    picture(tmp_path / "dtd/dtd/outside.jpg")
    text(tmp_path / "dtd/dtd/labels/val1.txt", "../outside.jpg\n")
    assert re.search(r"val1.txt is damaged.*outside.jpg", error("dtd", tmp_path))


def write_flowers(folder: Path, splits: dict[str, Sequence[int]], labels: Sequence[int]) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    for image in range(1, len(labels) + 1):
        picture(folder / "jpg" / f"image_{image:05d}.jpg")
    savemat(folder / "imagelabels.mat", {"labels": np.array([labels], dtype=np.uint8)})
    savemat(folder / "setid.mat", {name: np.array([images], dtype=np.uint16) for name, images in splits.items()})


def test_flowers102_has_official_splits_and_labels_from_one(tmp_path: Path) -> None:
    splits: dict[str, Sequence[int]] = {"trnid": [7, 1], "valid": [2, 4], "tstid": [3, 5, 6]}
    write_flowers(tmp_path / "flowers-102", splits, [1, 2, 3, 4, 5, 102, 77])
    original = read_original("flowers102", tmp_path)
    assert labelled(original.train) == {"image_00007.jpg": 76, "image_00001.jpg": 0}
    assert labelled(original.val) == {"image_00002.jpg": 1, "image_00004.jpg": 3}
    assert labelled(original.test) == {"image_00003.jpg": 2, "image_00005.jpg": 4, "image_00006.jpg": 101}
    assert look("flowers102", tmp_path).counts == {"train": 2, "val": 2, "test": 3}
    write_flowers(tmp_path / "flowers-102", {**splits, "tstid": [8]}, [1] * 7)
    assert re.search(r"setid.mat is damaged.*image 8", error("flowers102", tmp_path))
    write_flowers(tmp_path / "flowers-102", {"trnid": [1], "valid": [2]}, [1] * 7)
    assert re.search(r"setid.mat is damaged.*no variable tstid", error("flowers102", tmp_path))
    text(tmp_path / "flowers-102" / "imagelabels.mat", "no matlab\n" * 30)
    assert re.search(r"imagelabels.mat is damaged", error("flowers102", tmp_path))


def test_pets_divide_trainval_by_four_to_one(tmp_path: Path) -> None:
    folder = tmp_path / "oxford-iiit-pet"
    wanted = {}
    for split, count in (("trainval", 50), ("test", 7)):
        lines = ["#Image CLASS-ID SPECIES BREED ID"]
        for index in range(count):
            lines.append(f"Breed_{split}_{index} {index % 37 + 1} 1 1")
            spelling = "JPG" if index == 3 else "jpg"
            wanted[picture(folder / "images" / f"Breed_{split}_{index}.{spelling}").name] = index % 37
        text(folder / "annotations" / f"{split}.txt", "\n".join(lines))
    original = read_original("pets", tmp_path)
    assert lengths(original) == (40, 10, 7)
    assert together(original) == wanted
    assert all("trainval" in name for name in labelled(original.val))
    text(folder / "annotations" / "test.txt", "Breed_test_0 38 1 1\n")
    assert re.search(r"test.txt is damaged.*line 1", error("pets", tmp_path))
    picture(folder / "outside.jpg")
    text(folder / "annotations" / "test.txt", "../outside 3 1 1\n")
    assert re.search(r"test.txt is damaged.*line 1", error("pets", tmp_path))


def write_retinopathy(folder: Path) -> None:
    text(folder / "trainLabels.csv", "image,level\n10_left,0\n10_right,4\n")
    solution = "image,level,Usage\n1_left,1,Public\n1_right,2,Private\n2_left,3,Private\n"
    text(folder / "retinopathy_solution.csv", "\ufeff" + solution)  # with a byte order mark, as Excel writes it
    for name in (
        "train/10_left.jpeg",
        "train/10_right.jpeg",
        "test/1_left.JPEG",
        "test/1_right.png",
        "test/2_left.jpeg",
    ):
        picture(folder / name)


def test_retinopathy_validates_on_public_and_tests_on_private(tmp_path: Path) -> None:
    write_retinopathy(tmp_path / "diabetic-retinopathy-detection")
    original = read_original("diabetic_retinopathy", tmp_path)
    assert labelled(original.train) == {"10_left.jpeg": 0, "10_right.jpeg": 4}
    assert labelled(original.val) == {"1_left.JPEG": 1}
    assert labelled(original.test) == {"1_right.png": 2, "2_left.jpeg": 3}


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("retinopathy_solution.csv", "image,level\n1_left,1\n", "no column Usage"),
        ("trainLabels.csv", "image,grade\n10_left,1\n", "no column level"),
        ("trainLabels.csv", "image,level\n10_left,5\n", "line 2"),
        ("trainLabels.csv", "image,level\n10_left\n", "line 2"),
        ("trainLabels.csv", "image,level\n", "no rows"),
        ("retinopathy_solution.csv", "image,level,Usage\n1_left,1,Secret\n", "line 2"),
    ],
)
def test_a_bad_csv_file_of_retinopathy_is_told(file: str, content: str, reason: str, tmp_path: Path) -> None:
    write_retinopathy(tmp_path / "diabetic_retinopathy")
    text(tmp_path / "diabetic_retinopathy" / file, content)
    assert re.search(rf"{file} is damaged.*{reason}", error("diabetic_retinopathy", tmp_path))


def test_a_missing_image_of_retinopathy_is_told(tmp_path: Path) -> None:
    write_retinopathy(tmp_path / "diabetic_retinopathy")
    (tmp_path / "diabetic_retinopathy/test/2_left.jpeg").unlink()
    assert re.search(r"2_left.jpeg is listed but missing", error("diabetic_retinopathy", tmp_path))


def test_retinopathys_grades_are_read_whole(tmp_path: Path) -> None:
    rows = [f"{i}_left,{i % 5},{'Public' if i < 10906 else 'Private'}" for i in range(10906 + 42670)]
    grades = read_grades(text(tmp_path / "s.csv", "\n".join(["image,level,Usage", *rows])), usage=True)
    assert Counter(grade.usage for grade in grades) == {"Public": 10906, "Private": 42670}
