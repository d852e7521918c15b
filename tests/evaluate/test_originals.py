"""VTAB's data sets from original files: class folders, torchvision's data sets, CIFAR-100's binary files."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vivi.evaluate.tasks import definition
from vivi.evaluate.tasks.examples import Examples, Original
from vivi.evaluate.tasks.originals import SOURCES, deal, find_original, read_original, sizes
from vivi.runtime.errors import UserError


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (5, 4)).save(path, "JPEG")
    return path


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def error(name: str, data: Path) -> str:
    with pytest.raises(UserError) as raised:
        read_original(name, data)
    assert "\n" not in str(raised.value)
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


def lengths(original: Original) -> tuple[int, ...]:
    return len(original.train), len(original.val), len(original.test)


def numbered(count: int) -> Examples:
    return Examples([torch.tensor(k) for k in range(count)], torch.arange(count))


# --- deals


@pytest.mark.parametrize(
    ("name", "count", "shares", "test"),
    [
        ("caltech101", 102 * 30, (9, 1), [6084]),
        ("cifar100", 50000, (9, 1), [10000]),
        ("pets", 3680, (4, 1), [3669]),
        ("svhn", 73257, (9, 1), [26032]),
        ("sun397", 108754 - 1, (76128, 10875, 21750), []),
        ("eurosat", 27000, (3, 1, 1), []),
        ("resisc45", 45 * 700, (3, 1, 1), []),
    ],
)
def test_complete_data_sets_are_dealt_in_vtabs_sizes(
    name: str, count: int, shares: Sequence[int], test: list[int]
) -> None:
    known = definition(name)
    assert known is not None and [*sizes(count, shares), *test] == [known.train, known.val, known.test]


@pytest.mark.parametrize("shares", [(9, 1), (4, 1), (3, 1, 1), (76128, 10875, 21750)])
def test_a_deal_gives_every_image_to_one_split_in_proportion(shares: tuple[int, ...]) -> None:
    for count in (0, 1, 2, 3, 7, 10, 99, 1000):
        parts = [part.labels.tolist() for part in deal(numbered(count), shares)]
        assert sorted(index for part in parts for index in part) == list(range(count))
        assert [len(part) for part in parts] == sizes(count, shares)
        assert all(part == sorted(part) for part in parts)
    assert parts[0] != list(range(len(parts[0]))), "shuffled"


def test_a_deal_stays_the_same_for_ever() -> None:
    dealt = [part.labels.tolist() for part in deal(numbered(10), (3, 1, 1))]
    assert dealt == [[2, 5, 6, 7, 8, 9], [0, 3], [1, 4]]


# --- where they are


@pytest.mark.parametrize("name", SOURCES)
def test_an_empty_folder_says_what_is_missing_and_where_to_get_it(name: str, tmp_path: Path) -> None:
    message = error(name, tmp_path)
    place, missing = find_original(name, tmp_path)
    assert missing == SOURCES[name].needs and place.is_relative_to(tmp_path) and "http" in SOURCES[name].where
    assert str(place) in message and missing[0] in message and SOURCES[name].where in message


def test_a_data_set_is_found_in_its_usual_places(tmp_path: Path) -> None:
    for place in ("eurosat/2750", "eurosat", "EuroSAT_RGB", "."):
        data = tmp_path / place.replace("/", "-") / "data"
        for index in range(5):
            picture(data / place / "AnnualCrop" / f"AnnualCrop_{index}.jpg")
        assert find_original("eurosat", data) == (data / place, ())
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
    assert lengths(original) == {"sun397": (70, 10, 20)}.get(name, (60, 20, 20))
    for file, label in together(original).items():
        assert file.startswith(classes[label].replace("/", "_"))
    assert Counter(together(original).values()) == {0: 20, 1: 40, 2: 40}
    again = read_original(name, tmp_path)
    assert list(again.val.images) == list(original.val.images)
    assert list(pickle.loads(pickle.dumps(original.val.images))) == list(original.val.images)


def test_a_folder_without_images_is_told(tmp_path: Path) -> None:
    for name in ("airplane", "wetland"):
        (tmp_path / "NWPU-RESISC45" / name).mkdir(parents=True)
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


# --- torchvision's


def test_dtd_is_its_first_official_split(tmp_path: Path) -> None:
    folder = tmp_path / "dtd" / "dtd"
    names = [(name, index) for name in ("zigzag", "banded") for index in range(3)]
    lists = {s: [f"{name}/{name}_{s}{index}.jpg" for name, index in names] for s in ("train", "val", "test")}
    for split, lines in lists.items():
        text(folder / "labels" / f"{split}1.txt", "\n".join(lines) + "\n")
        text(folder / "labels" / f"{split}2.txt", "another fold")
        for line in lines:
            picture(folder / "images" / line)
    original = read_original("dtd", tmp_path)
    for split, part in zip(("train", "val", "test"), (original.train, original.val, original.test), strict=True):
        assert labelled(part) == {line.split("/")[1]: int(line.startswith("zigzag")) for line in lists[split]}
    (folder / "images/banded/banded_val1.jpg").unlink()
    assert re.search(r"banded_val1.jpg is listed but missing", error("dtd", tmp_path))
    picture(folder / "outside.jpg")
    text(folder / "labels/val1.txt", "../outside.jpg\n")
    assert re.search(r"dtd is damaged.*leads out", error("dtd", tmp_path))
    text(folder / "labels/val1.txt", "banded_0001.jpg\n")
    assert re.search(r"is damaged.*torchvision.datasets.DTD, val", error("dtd", tmp_path))
    text(folder / "labels/val1.txt", "")
    assert re.search(r"dtd is damaged.*lists no images", error("dtd", tmp_path))


@pytest.fixture
def any_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision knows the checksums of the real files, which ours cannot have."""
    for module in ("flowers102", "svhn"):
        monkeypatch.setattr(f"torchvision.datasets.{module}.check_integrity", lambda path, md5: Path(path).is_file())


def write_flowers(folder: Path, splits: dict[str, Sequence[int]], labels: Sequence[int]) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    for image in range(1, len(labels) + 1):
        picture(folder / "jpg" / f"image_{image:05d}.jpg")
    savemat(folder / "imagelabels.mat", {"labels": np.array([labels], dtype=np.uint8)})
    savemat(folder / "setid.mat", {name: np.array([images], dtype=np.uint16) for name, images in splits.items()})


@pytest.mark.usefixtures("any_content")
def test_flowers102_has_official_splits_and_labels_from_one(tmp_path: Path) -> None:
    splits: dict[str, Sequence[int]] = {"trnid": [7, 1], "valid": [2, 4], "tstid": [3, 5, 6]}
    write_flowers(tmp_path / "flowers-102", splits, [1, 2, 3, 4, 5, 102, 77])
    original = read_original("flowers102", tmp_path)
    assert labelled(original.train) == {"image_00007.jpg": 76, "image_00001.jpg": 0}
    assert labelled(original.val) == {"image_00002.jpg": 1, "image_00004.jpg": 3}
    assert labelled(original.test) == {"image_00003.jpg": 2, "image_00005.jpg": 4, "image_00006.jpg": 101}
    write_flowers(tmp_path / "flowers-102", {**splits, "tstid": [8, 9]}, [1] * 7)
    assert re.search(r"is damaged.*Flowers102, test: ", error("flowers102", tmp_path))
    text(tmp_path / "flowers-102" / "imagelabels.mat", "no matlab\n" * 30)
    assert re.search(r"is damaged.*Flowers102, train: ", error("flowers102", tmp_path))


def test_files_that_are_not_torchvisions_are_told(tmp_path: Path) -> None:
    write_flowers(tmp_path / "flowers-102", {"trnid": [1], "valid": [2], "tstid": [3]}, [1] * 3)
    assert re.search(r"is damaged.*Flowers102, train: Dataset not found or corrupted", error("flowers102", tmp_path))


def test_pets_divide_trainval_by_four_to_one(tmp_path: Path) -> None:
    folder = tmp_path / "oxford-iiit-pet"
    wanted = {}
    for split, count in (("trainval", 50), ("test", 7)):
        lines = [f"Breed_{split}_{index} {index % 37 + 1} 1 1" for index in range(count)]
        for index in range(count):
            wanted[picture(folder / "images" / f"Breed_{split}_{index}.jpg").name] = index % 37
        text(folder / "annotations" / f"{split}.txt", "\n".join(lines))
    original = read_original("pets", tmp_path)
    assert lengths(original) == (40, 10, 7)
    assert together(original) == wanted
    assert all("trainval" in name for name in labelled(original.val))
    picture(folder / "outside.jpg")
    text(folder / "annotations" / "test.txt", "../outside 3 1 1\n")
    assert re.search(r"oxford-iiit-pet is damaged.*leads out", error("pets", tmp_path))


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(shape).integers(0, 256, shape, dtype=np.uint8)


def check(first: Examples, second: Examples | None, pixels: NDArray[np.uint8], labels: list[int]) -> None:
    """One or two splits together are these images (count, 3, h, w) with these labels, each once."""
    both = first.and_then(second) if second else first
    images = [image for image in both.images if isinstance(image, Tensor) and image.dtype == torch.uint8]
    found = sorted((image.numpy().tobytes(), int(k)) for image, k in zip(images, both.labels, strict=True))
    assert found == sorted((each.tobytes(), label) for each, label in zip(pixels, labels, strict=True))
    again = pickle.loads(pickle.dumps(both.images))
    assert all(torch.equal(a, b) for a, b in zip(images, again, strict=True))


@pytest.mark.usefixtures("any_content")
def test_svhn_is_digits(tmp_path: Path) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    (tmp_path / "svhn").mkdir()
    written = {}
    for name, count in (("train", 20), ("test", 5)):
        pixels, digits = noise(count, 3, 32, 32), [i % 10 for i in range(count)]
        stored = np.array([[digit or 10] for digit in digits], dtype=np.uint8)  # the digit 0 has the label 10
        savemat(tmp_path / f"svhn/{name}_32x32.mat", {"X": pixels.transpose(2, 3, 1, 0), "y": stored})
        written[name] = pixels, digits
    original = read_original("svhn", tmp_path)
    assert lengths(original) == (18, 2, 5)
    check(original.test, None, *written["test"])
    check(original.train, original.val, *written["train"])
    path = tmp_path / "svhn/test_32x32.mat"
    path.write_bytes(path.read_bytes()[:3000])
    assert re.search(r"svhn is damaged.*SVHN, test", error("svhn", tmp_path))


# --- arrays


def test_cifar100_has_fine_labels_and_planes_of_colours(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    written = {}
    for name, count in (("train", 30), ("test", 4)):
        pixels, labels = noise(count, 3, 32, 32), [(7 * i) % 100 for i in range(count)]
        records = (bytes([i % 20, labels[i]]) + pixels[i].tobytes() for i in range(count))
        (folder / f"{name}.bin").write_bytes(b"".join(records))
        written[name] = pixels, labels
    original = read_original("cifar100", tmp_path)
    assert lengths(original) == (27, 3, 4)
    check(original.test, None, *written["test"])
    check(original.train, original.val, *written["train"])
    with (folder / "test.bin").open("r+b") as file:
        file.truncate(3074 * 4 - 1)
    assert re.search(r"test.bin is damaged.*12295 bytes", error("cifar100", tmp_path))
    (folder / "test.bin").unlink()
    assert find_original("cifar100", tmp_path) == (folder, ("test.bin",))
    assert re.search(r"has no test.bin.*cifar-100-binary.tar.gz", error("cifar100", tmp_path))
