"""Sets of COCO's format: every layout, and every way in which a row can be wrong."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vivi.evaluate.detection.sets import DetectionSet, open_sets
from vivi.runtime.errors import UserError

WIDTH, HEIGHT = 60, 40
CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 2, "name": "cat"}]


def picture(path: Path, width: int = WIDTH, height: int = HEIGHT) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (200, 60, 30)).save(path)


def image(key: int, name: str, **more: Any) -> dict[str, Any]:
    return {"id": key, "file_name": name, "width": WIDTH, "height": HEIGHT, **more}


def box(key: int, image_id: Any, bbox: Any = (10, 5, 20, 10), category: Any = 2, **more: Any) -> dict[str, Any]:
    found = list(bbox) if isinstance(bbox, tuple) else bbox
    return {"id": key, "image_id": image_id, "category_id": category, "bbox": found, **more}


def write(file: Path, images: Any, annotations: Any, categories: Any = CATEGORIES) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound set: two training images, one test image."""
    data = tmp_path / "pets"
    for name in ("a.jpg", "b.png", "t.jpg"):
        picture(data / "images" / name)
    write(data / "instances_train.json", [image(1, "a.jpg"), image(2, "b.png")], [box(1, 1), box(2, 2, category=7)])
    write(data / "instances_val.json", [image(9, "t.jpg")], [box(1, 9, category=7)])
    return data


def train_with(folder: Path, images: list[Any], annotations: list[Any]) -> DetectionSet:
    """The training set with more rows, which come first."""
    file = folder / "instances_train.json"
    content = json.loads(file.read_text())
    write(file, images + content["images"], annotations + content["annotations"])
    return open_sets(folder)[0]


def noted(data: DetectionSet, *words: str) -> bool:
    return any(all(word in line for word in words) for line in data.notes)


def test_boxes_are_corners_and_labels_places_in_the_sorted_ids(folder: Path) -> None:
    train, test = open_sets(folder)
    assert (train.name, train.classes, train.notes) == ("pets", ("cat", "dog"), ())
    assert [one.path.name for one in train.images] == ["a.jpg", "b.png"]
    assert train.images[0].boxes.tolist() == [[10, 5, 30, 15]]
    assert train.images[0].areas.tolist() == [200]
    assert [one.labels.tolist() for one in (*train.images, *test.images)] == [[0], [1], [1]]
    assert (train.images[0].width, train.images[0].height) == (WIDTH, HEIGHT)


@pytest.mark.parametrize(
    ("train", "train_images", "val", "val_images"),
    [
        ("instances_train.json", "images", "instances_val.json", "images"),
        ("instances_train.json", "images/train", "instances_val.json", "images/val"),
        ("annotations/instances_train2017.json", "train2017", "annotations/instances_val2017.json", "val2017"),
        ("train/_annotations.coco.json", "train", "valid/_annotations.coco.json", "valid"),
        ("train/_annotations.coco.json", "train", "test/_annotations.coco.json", "test"),
    ],
)
def test_every_layout_is_found(tmp_path: Path, train: str, train_images: str, val: str, val_images: str) -> None:
    picture(tmp_path / train_images / "a.jpg")
    picture(tmp_path / val_images / "t.jpg")
    write(tmp_path / train, [image(1, "a.jpg")], [box(1, 1)])
    write(tmp_path / val, [image(1, "t.jpg")], [box(1, 1)])
    first, second = open_sets(tmp_path)
    assert first.images[0].path == tmp_path / train_images / "a.jpg"
    assert second.images[0].path == tmp_path / val_images / "t.jpg"


def test_files_named_outright_are_taken(folder: Path, tmp_path: Path) -> None:
    shutil.move(folder / "instances_train.json", tmp_path / "mine.json")
    shutil.move(folder / "instances_val.json", tmp_path / "other.json")
    train, test = open_sets(folder, tmp_path / "mine.json", tmp_path / "other.json")
    assert (len(train.images), len(test.images)) == (2, 1)


def test_categories_go_by_name_whatever_their_ids(folder: Path) -> None:
    swapped = [{"id": 1, "name": "dog"}, {"id": 5, "name": "cat"}]
    write(folder / "instances_val.json", [image(9, "t.jpg")], [box(1, 9, category=1), box(2, 9, category=5)], swapped)
    assert open_sets(folder)[1].images[0].labels.tolist() == [1, 0]


def test_sets_with_other_categories_are_refused(folder: Path) -> None:
    write(folder / "instances_val.json", [image(9, "t.jpg")], [box(1, 9)], CATEGORIES[1:])
    with pytest.raises(UserError, match=r"instances_val.json lacks 1 of the categories .*'dog'"):
        open_sets(folder)


def test_an_image_in_both_sets_is_noted(folder: Path) -> None:
    write(folder / "instances_val.json", [image(9, "a.jpg"), image(8, "t.jpg")], [box(1, 9)])
    assert noted(open_sets(folder)[1], "1 of 2 test images are training images too", "a.jpg")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (box(50, 99), ("of an image that is not listed", "id 50 (image 99)")),
        (box(50, None), ("of an image that is not listed", "image None")),
        (box(50, 1, category=3), ("of a category that is not listed", "category 3")),  # in the gap
        (box(50, 1, (100, 5, 20, 10)), ("outside its image, left out", "id 50")),
        (box(50, 1, (-30, 5, 20, 10)), ("outside its image, left out",)),
        (box(50, 1, (10, 5, 0, 10)), ("without area", "0 × 10")),
        (box(50, 1, (10, 5, -4, 10)), ("without area",)),
        (box(50, 1, (10, 5, float("nan"), 10)), ("not four numbers", "nan")),
        (box(50, 1, (10, 5, "8", 10)), ("not four numbers",)),
        (box(50, 1, (10, 5, 8)), ("not four numbers",)),
        (box(50, 1, (10, 5, 10**400, 10)), ("not four numbers",)),
        (box(50, 1, "none"), ("not four numbers",)),
        ({"id": 50, "image_id": 1, "category_id": 2, "caption": "a cat"}, ("without a bbox", "id 50")),
        (["no", "object"], ("that is no object", "number 1")),
        (box(1, 1), ("that repeats another",)),
    ],
)
def test_a_broken_annotation_loses_nothing_else(folder: Path, row: Any, words: tuple[str, ...]) -> None:
    sound, _ = open_sets(folder)
    data = train_with(folder, [], [row])
    assert len(data.notes) == 1 and noted(data, "pets/instances_train.json: 1 annotation ", *words)
    assert data.fingerprint() == sound.fingerprint()


def test_many_of_a_kind_are_counted_and_the_first_few_named(folder: Path) -> None:
    data = train_with(folder, [], [box(number, 99) for number in range(50, 1150)])
    assert noted(data, "1,100 annotations of an image", "id 50", "id 52", "...") and not noted(data, "id 53")


def test_a_box_partly_outside_is_clipped(folder: Path) -> None:
    data = train_with(folder, [], [box(50, 1, (50, -5, 20, 10), area=200)])
    assert data.images[0].boxes[0].tolist() == [50, 0, 60, 5]
    assert data.images[0].areas[0] == 50
    assert noted(data, "1 annotation with a box partly outside its image, clipped: id 50")


def test_what_sticks_out_by_rounding_is_cut_without_a_word(folder: Path) -> None:
    data = train_with(folder, [], [box(50, 1, (39.995, 5, 20.01, 10), area=80)])
    assert data.images[0].boxes[0, 2] == WIDTH and data.images[0].areas[0] == 80 and not data.notes


def test_crowds_are_kept_and_marked(folder: Path) -> None:
    data = train_with(folder, [], [box(50, 1, iscrowd=1, segmentation={"counts": [1, 2], "size": [40, 60]})])
    assert data.images[0].crowd.tolist() == [True, False] and not data.notes


def test_different_boxes_with_one_id_are_both_kept(folder: Path) -> None:
    data = train_with(folder, [], [box(1, 1, (0, 0, 5, 5))])
    assert len(data.images[0].boxes) == 2 and noted(data, "1 annotation with the id of another, kept")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (image(50, "gone.jpg"), ("whose file is missing", "'gone.jpg'")),
        (image(50, "a.jpg/b.jpg"), ("whose file is missing",)),
        (image(50, "empty.jpg"), ("whose file is empty", "'empty.jpg'")),
        (image(50, "text.jpg"), ("whose file is unreadable", "'text.jpg'")),
        (image(50, "sub"), ("whose file is unreadable", "no file")),
        (image(50, "a\0.jpg"), ("whose file is unreadable",)),
        (image(50, "large.jpg"), ("whose file has another size", "(80 × 30, not 60 × 40)")),
        (image(50, "turned.jpg"), ("whose file has another size", "(40 × 60, not 60 × 40; store it upright")),
        (image(50, "../secret.jpg"), ("leads out of the folder", "secret.jpg")),
        (image(50, "sub/../../secret.jpg"), ("leads out of the folder",)),
        (image(50, "/secret.jpg"), ("leads out of the folder",)),
        (image(50, "sub/../a.jpg"), ("leads out of the folder",)),
        (image(50, "sized.jpg", width="60"), ("whose file has another size", "(60 × 40, not '60' × 40)")),
        ({"id": 50}, ("without a whole number as id or a file_name", "number 1")),
        (image(True, "a.jpg"), ("without a whole number as id or a file_name",)),
        (["a.jpg"], ("without a whole number as id or a file_name",)),
    ],
)
def test_a_broken_image_loses_nothing_but_its_boxes(folder: Path, row: Any, words: tuple[str, ...]) -> None:
    sound, _ = open_sets(folder)
    (folder / "images" / "empty.jpg").touch()
    (folder / "images" / "text.jpg").write_text("not a picture" * 100)
    (folder / "images" / "sub").mkdir()
    picture(folder / "images" / "sized.jpg")
    picture(folder / "images" / "large.jpg", 80, 30)
    picture(folder / "images" / "turned.jpg", HEIGHT, WIDTH)
    picture(folder / "secret.jpg")
    data = train_with(folder, [row], [box(60, 50)])
    assert noted(data, "1 image ", *words, "left out") and len(data.notes) == 2
    assert noted(data, "1 annotation of an image that is ", "id 60 (image 50)")
    assert data.fingerprint() == sound.fingerprint()


def test_of_two_images_with_one_id_the_first_is_kept(folder: Path) -> None:
    data = train_with(folder, [image(1, "t.jpg")], [])
    assert [one.path.name for one in data.images] == ["t.jpg", "b.png"]
    assert noted(data, "1 image with the id of another", "'a.jpg' (1)")


def test_an_image_without_objects_is_background(folder: Path) -> None:
    data = train_with(folder, [image(50, "t.jpg")], [])
    assert data.images[0].boxes.shape == (0, 4) and data.images[0].labels.shape == (0,)
    assert noted(data, "1 image without objects, kept as background: 't.jpg'")


def test_an_image_without_a_size_has_that_of_its_file(folder: Path) -> None:
    data = train_with(folder, [{"id": 50, "file_name": "t.jpg"}], [])
    assert (data.images[0].width, data.images[0].height) == (WIDTH, HEIGHT)


def test_exif_is_not_followed(folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (WIDTH, HEIGHT)).save(folder / "images" / "held.jpg", exif=exif)
    data = train_with(folder, [image(50, "held.jpg")], [box(50, 50)])
    assert data.images[0].width == WIDTH and not data.notes


def test_category_rows_that_are_wrong_are_noted(folder: Path) -> None:
    rows = [*CATEGORIES, {"id": 2, "name": "cow"}, {"name": "x"}, {"id": 8, "name": "dog"}]
    write(folder / "instances_train.json", [image(1, "a.jpg")], [box(1, 1, category=8)], rows)
    train, _ = open_sets(folder)
    assert train.classes == ("cat", "dog") and train.images[0].labels.tolist() == [1]
    assert noted(train, "'cow' with the id of 'cat'") and noted(train, "without a whole number as id or a name")
    assert noted(train, "taken as one class: 'dog'")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no set of COCO's"),
        ({"images": []}, "has no images"),
        ({"annotations": []}, "has no annotations"),
        ({"categories": None}, "has no categories"),
        ({"categories": [{"id": "x"}]}, "has no usable categories"),
        ({"images": [{}]}, "has no usable images"),
        ({"images": [image(1, "gone.jpg")]}, "lists 1 images, 'gone.jpg' first, that are in none of"),
        ({"images": [image(1, "a.jpg", width=9)]}, "none of the images"),
        ({"annotations": [box(1, 77)]}, "has no box that can be used"),
        ({"annotations": [box(1, 1, iscrowd=1)]}, "has no box that can be used"),
    ],
)
def test_a_useless_file_is_one_line(folder: Path, content: Any, words: str) -> None:
    file = folder / "instances_train.json"
    whole = json.loads(file.read_text())
    file.write_text(content if isinstance(content, str) else json.dumps(whole | content))
    with pytest.raises(UserError, match=words) as error:
        open_sets(folder)
    assert "\n" not in str(error.value) and str(file) in str(error.value)


def test_a_folder_without_annotations_says_what_is_looked_for(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder"):
        open_sets(tmp_path / "nothing")
    os.remove(folder / "instances_val.json")
    with pytest.raises(UserError, match=r"no annotations for test: none of instances_val.json, .* --test"):
        open_sets(folder)
    with pytest.raises(UserError, match=r"missing.json cannot be read"):
        open_sets(folder, test=tmp_path / "missing.json")


def test_the_fingerprint_tells_content_but_not_the_place(folder: Path, tmp_path: Path) -> None:
    before = open_sets(folder)[0].fingerprint()
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    assert open_sets(moved)[0].fingerprint() == before
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)).save(
        moved / "images" / "a.jpg"
    )
    other = open_sets(moved)[0].fingerprint()
    assert other != before
    assert train_with(moved, [], [box(50, 1, (0, 0, 9, 9))]).fingerprint() not in (before, other)


def test_a_file_that_is_listed_twice_is_used_once(folder: Path) -> None:
    data = train_with(folder, [image(50, "./a.jpg")], [box(60, 50)])
    assert [one.id for one in data.images] == [50, 2]
    assert noted(data, "1 image with the file of another, left out: 'a.jpg' (1)")
    assert noted(data, "1 annotation of an image that is left out", "(image 1)")


@pytest.mark.parametrize("crowd", ["0", "no", 2, [1]])
def test_an_iscrowd_that_says_neither_yes_nor_no_is_noted(folder: Path, crowd: Any) -> None:
    data = train_with(folder, [], [box(60, 1, iscrowd=crowd)])
    assert noted(data, "with an iscrowd that is neither 0 nor 1, left out: id 60")


def test_names_of_categories_are_on_one_line(folder: Path) -> None:
    for file in ("instances_train.json", "instances_val.json"):
        content = json.loads((folder / file).read_text())
        write(folder / file, content["images"], content["annotations"], [{"id": 2, "name": "a \n b"}, CATEGORIES[0]])
    assert open_sets(folder)[0].classes == ("a b", "dog")
