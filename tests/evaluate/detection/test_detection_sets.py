"""Sets of COCO's format: every layout, what is left out and named, and what is refused."""

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
    with pytest.raises(UserError, match=r"instances_val.json have different categories, 'dog';"):
        open_sets(folder)


def test_an_image_in_both_sets_is_noted(folder: Path) -> None:
    write(folder / "instances_val.json", [image(9, "a.jpg"), image(8, "t.jpg")], [box(1, 9)])
    assert noted(open_sets(folder)[1], "1 of 2 test images are training images too", "a.jpg")


@pytest.mark.parametrize(
    ("row", "which"),
    [
        (box(50, 99), "id 50 of image 99"),
        (box(50, 1, category=3), "id 50 of image 1"),  # in the gap
        (box(50, 1, (100, 5, 20, 10)), "id 50 of image 1"),
        (box(50, 1, (-30, 5, 20, 10)), "id 50 of image 1"),
        (box(50, 1, (10, 5, 0, 10)), "id 50 of image 1"),
        (box(50, 1, (10, 5, -4, 10)), "id 50 of image 1"),
    ],
)
def test_a_box_that_cannot_be_used_loses_nothing_else(folder: Path, row: Any, which: str) -> None:
    sound, _ = open_sets(folder)
    data = train_with(folder, [], [row])
    what = "annotations left out, without a listed category or an area in a usable image (1)"
    assert data.notes == (f"pets/instances_train.json: {what}: {which!r}",)
    assert data.fingerprint() == sound.fingerprint()


def test_many_of_a_kind_are_counted_and_the_first_few_named(folder: Path) -> None:
    data = train_with(folder, [], [box(number, 99) for number in range(50, 1150)])
    assert noted(data, "(1,100): 'id 50", "'id 54", "and 1,095 more") and not noted(data, "id 55")


def test_a_box_partly_outside_is_clipped(folder: Path) -> None:
    data = train_with(folder, [], [box(50, 1, (50, -5, 20, 10), area=200)])
    assert data.images[0].boxes[0].tolist() == [50, 0, 60, 5]
    assert data.images[0].areas[0] == 50
    assert noted(data, "partly outside their image, clipped (1): 'id 50 of image 1'")


def test_what_sticks_out_by_rounding_is_cut_without_a_word(folder: Path) -> None:
    data = train_with(folder, [], [box(50, 1, (39.995, 5, 20.01, 10), area=80)])
    assert data.images[0].boxes[0, 2] == WIDTH and data.images[0].areas[0] == 80 and not data.notes


def test_crowds_are_kept_and_marked(folder: Path) -> None:
    data = train_with(folder, [], [box(50, 1, iscrowd=1, segmentation={"counts": [1, 2], "size": [40, 60]})])
    assert data.images[0].crowd.tolist() == [True, False] and not data.notes


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (image(50, "gone.jpg"), ("gone.jpg: No such file",)),
        (image(50, "a.jpg/b.jpg"), ("a.jpg/b.jpg: Not a directory",)),
        (image(50, "empty.jpg"), ("empty.jpg: ",)),
        (image(50, "text.jpg"), ("text.jpg: ",)),
        (image(50, "sub"), ("sub: Is a directory",)),
        (image(50, "a\0.jpg"), ("embedded null",)),
        (image(50, "large.jpg"), ("it is 80 × 30, not 60 × 40",)),
        (image(50, "turned.jpg"), ("it is 40 × 60, not 60 × 40; store it upright",)),
        (image(50, "../secret.jpg"), ("secret.jpg: its path leads out of the folder",)),
        (image(50, "sub/../../secret.jpg"), ("leads out of the folder",)),
        (image(50, "/secret.jpg"), ("leads out of the folder",)),
        (image(2, "t.jpg"), ("'b.png: its id or file is listed before'",)),
        (image(50, "./b.png"), ("'b.png: its id or file is listed before'",)),
    ],
)
def test_an_image_that_cannot_be_used_loses_nothing_but_its_boxes(
    folder: Path, row: Any, words: tuple[str, ...]
) -> None:
    (folder / "images" / "empty.jpg").touch()
    (folder / "images" / "text.jpg").write_text("not a picture" * 100)
    (folder / "images" / "sub").mkdir()
    picture(folder / "images" / "large.jpg", 80, 30)
    picture(folder / "images" / "turned.jpg", HEIGHT, WIDTH)
    picture(folder / "secret.jpg")
    sound, _ = open_sets(folder)
    data = train_with(folder, [row], [box(60, 50)])
    assert noted(data, "images left out", "(1): ", *words)
    if "listed before" not in words[0]:
        assert len(data.notes) == 2 and noted(data, "annotations left out", "(1): 'id 60 of image 50'")
        assert data.fingerprint() == sound.fingerprint()
    else:
        assert [one.path.name for one in data.images] == [Path(row["file_name"]).name, "a.jpg"]


def test_an_image_without_objects_is_background(folder: Path) -> None:
    data = train_with(folder, [image(50, "t.jpg")], [])
    assert data.images[0].boxes.shape == (0, 4) and data.images[0].labels.shape == (0,)
    assert noted(data, "images without objects, kept as background (1): 't.jpg'")


def test_an_image_without_a_size_has_that_of_its_file(folder: Path) -> None:
    data = train_with(folder, [{"id": 50, "file_name": "t.jpg"}], [])
    assert (data.images[0].width, data.images[0].height) == (WIDTH, HEIGHT)


def test_exif_is_not_followed(folder: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (WIDTH, HEIGHT)).save(folder / "images" / "held.jpg", exif=exif)
    data = train_with(folder, [image(50, "held.jpg")], [box(50, 50)])
    assert data.images[0].width == WIDTH and not data.notes


def test_two_categories_of_one_name_are_one_class(folder: Path) -> None:
    rows = [*CATEGORIES, {"id": 8, "name": "dog"}]
    write(folder / "instances_train.json", [image(1, "a.jpg")], [box(1, 1, category=8)], rows)
    train, _ = open_sets(folder)
    assert train.classes == ("cat", "dog") and train.images[0].labels.tolist() == [1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is not in the format"),
        ("[]", "Expected `object`, got `array`"),
        ({"images": []}, "has no images"),
        ({"annotations": []}, "has no annotations"),
        ({"categories": None}, r"at `\$.categories`"),
        ({"categories": [{"id": "x", "name": "x"}]}, r"at `\$.categories\[0\].id`"),
        ({"images": [{"id": 1}]}, "missing required field `file_name`"),
        ({"annotations": [{"id": 5, "image_id": 1, "category_id": 2, "caption": "cat"}]}, "missing .* field `bbox`"),
        ({"annotations": [box(1, 1, (10, 5, float("nan"), 10))]}, "is no JSON"),
        ({"annotations": [box(1, 1), box(2, 1, (10, 5, 8))]}, r"at `\$.annotations\[1\].bbox`"),
        ({"annotations": [box(1, 1, "none")]}, r"at `\$.annotations\[0\].bbox`"),
        ({"annotations": [box(1, 1, iscrowd=2)]}, r"at `\$.annotations\[0\].iscrowd`"),
        ({"annotations": [["no", "object"]]}, "Expected `object`, got `array`"),
        ({"images": [image(1, "gone.jpg")]}, "lists 1 images, 'gone.jpg' first, that are in none of"),
        ({"images": [image(1, "a.jpg", width=9)]}, "has no image that can be used"),
        ({"annotations": [box(1, 77)]}, "has no box but those of crowds that can be used"),
        ({"annotations": [box(1, 1, iscrowd=1)]}, "has no box but those of crowds that can be used"),
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


def test_names_of_categories_are_on_one_line(folder: Path) -> None:
    for file in ("instances_train.json", "instances_val.json"):
        content = json.loads((folder / file).read_text())
        write(folder / file, content["images"], content["annotations"], [{"id": 2, "name": "a \n b"}, CATEGORIES[0]])
    assert open_sets(folder)[0].classes == ("a b", "dog")
