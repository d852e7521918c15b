"""Labelled images are found in folders and lists, cut down class by class, and what is left out is said."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from vivi.data.images import LabelledImages, class_balanced, find_images, find_test_images, only_listed
from vivi.runtime.errors import UserError


def touch(root: Path, names: Iterable[str]) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def pairs(images: LabelledImages) -> dict[str, str]:
    return {name: images.classes[label] for name, label in zip(images.names, images.labels, strict=True)}


def fails(call: Callable[[], object], *said: str) -> None:
    with pytest.raises(UserError) as error:
        call()
    assert "\n" not in str(error.value)
    for part in said:
        assert part in str(error.value)


def unequal(sizes: list[int]) -> LabelledImages:
    """Images of classes of these sizes, that exist in name only."""
    classes = tuple(f"c{label:02}" for label in range(len(sizes)))
    names = [f"{name}/{number:05}.jpg" for name, size in zip(classes, sizes, strict=True) for number in range(size)]
    return LabelledImages(Path("root"), Path("root"), names, np.repeat(np.arange(len(sizes)), sizes), classes)


def test_a_folder_per_class_with_images_anywhere_below_it(tmp_path: Path) -> None:
    names = [
        "b/2.JPEG",
        "b/images/1.png",
        "b/.hidden.jpg",
        "a x/0.webp",
        "a x/deep/er/0.TIFF",
        "a/9.pgm",
        ".git/x/0.jpg",
    ]
    images = find_images(touch(tmp_path, names))
    assert images.classes == ("a", "a x", "b")
    assert pairs(images) == {
        "a x/0.webp": "a x",
        "a x/deep/er/0.TIFF": "a x",
        "a/9.pgm": "a",
        "b/2.JPEG": "b",
        "b/images/1.png": "b",
    }
    assert list(images.names) == sorted(images.names) and images.labels.dtype == np.int64
    assert all(images.path(index).is_file() for index in range(len(images)))
    assert images.notes == ()


def test_every_suffix_in_any_case_and_no_other(tmp_path: Path) -> None:
    good = ["jpg", "JPEG", "Png", "webp", "BMP", "gif", "tif", "TIFF", "ppm", "pgm"]
    touch(tmp_path, [f"{one}/x.{suffix}" for one in "ab" for suffix in [*good, "txt", "mp4", "npy", "jpg~"]])
    touch(tmp_path, ["a/noname"])
    images = find_images(tmp_path)
    assert len(images) == 2 * len(good)
    assert images.notes == (f"left out 9 files other than images: the first is {str(tmp_path / 'a/noname')!r}",)


@pytest.mark.parametrize("beside", ["val", "validation", "test"])
def test_train_is_meant_where_test_images_lie_beside_it(tmp_path: Path, beside: str) -> None:
    touch(tmp_path, ["train/a/0.jpg", "train/b/0.jpg", f"{beside}/b/1.jpg", f"{beside}/b/2.jpg"])
    images = find_images(tmp_path)
    assert images.root == tmp_path / "train" and images.classes == ("a", "b")
    test = find_test_images(tmp_path, None, images.classes)
    assert test is not None and test.root == tmp_path / beside
    assert pairs(test) == {"b/1.jpg": "b", "b/2.jpg": "b"} and test.classes == ("a", "b")
    # A class may be called train.
    assert find_images(touch(tmp_path / "vehicles", ["train/0.jpg", "bus/0.jpg"])).classes == ("bus", "train")


def test_test_images_are_labelled_as_in_training(tmp_path: Path) -> None:
    source = touch(tmp_path / "source", ["b/0.jpg", "c/0.jpg", "d/0.jpg"])
    classes = find_images(source).classes
    assert find_test_images(source, None, classes) is None
    test = find_test_images(source, touch(tmp_path / "held", ["a/1.jpg", "b/1.jpg", "d/1.jpg"]), classes)
    assert test is not None and test.labels.tolist() == [0, 2] and list(test.names) == ["b/1.jpg", "d/1.jpg"]
    assert test.notes == (f"left out 1 class name of {tmp_path / 'held'} that training does not know: 'a'",)
    strange = touch(tmp_path / "strange", ["x/1.jpg", "y/1.jpg"])
    fails(lambda: find_test_images(source, strange, classes), str(strange), "'x'", "name them alike")


def test_numbers_of_a_test_list_are_names_of_classes_or_else_their_places(tmp_path: Path) -> None:
    touch(tmp_path, ["0.jpg", "1.jpg", "2.jpg"])
    test = write(tmp_path / "test.txt", "0.jpg 1", "1.jpg 2", "2.jpg 10")
    named = find_test_images(tmp_path, test, ["1", "10", "2"])
    assert named is not None and named.labels.tolist() == [0, 2, 1]
    placed = find_test_images(tmp_path, test, ["a", "b", "c"])
    assert placed is not None and placed.labels.tolist() == [1, 2] and placed.classes == ("a", "b", "c")
    assert any("0 is 'a'" in note for note in placed.notes) and any("'10'" in note for note in placed.notes)


def test_unusable_test_images_beside_train_name_the_way_out(tmp_path: Path) -> None:
    touch(tmp_path, ["train/a/0.jpg", "train/b/0.jpg", "val/0.jpg"])
    fails(
        lambda: find_test_images(tmp_path, None, ["a", "b"]), str(tmp_path / "val"), f"or give {tmp_path / 'train'},"
    )


def test_what_a_folder_holds_besides_is_noted(tmp_path: Path) -> None:
    touch(tmp_path, ["a/0.jpg", "b/0.jpg", "empty/readme.txt", "void/.x.jpg", "lost2.png", "lost1.png", "names.csv"])
    images = find_images(tmp_path)
    assert images.classes == ("a", "b") and len(images) == 2
    assert images.notes == (
        "left out 2 class folders without images: the first is 'empty'",
        f"left out 2 images in {tmp_path} itself, outside the class folders: the first is 'lost1.png'",
        f"left out 2 files other than images: the first is {str(tmp_path / 'empty/readme.txt')!r}",
    )


def test_links_are_followed_and_lead_nowhere_twice(tmp_path: Path) -> None:
    touch(tmp_path / "store", ["a/0.jpg", "b/0.jpg"])
    (tmp_path / "set").mkdir()
    (tmp_path / "set/a").symlink_to(tmp_path / "store/a")
    (tmp_path / "set/b").symlink_to(tmp_path / "store/b")
    (tmp_path / "store/a/up").symlink_to(tmp_path / "store/a")
    (tmp_path / "store/b/gone.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "store/b/self.jpg").symlink_to("self.jpg")
    os.mkfifo(tmp_path / "store/b/pipe.jpg")
    images = find_images(tmp_path / "set")
    assert pairs(images) == {"a/0.jpg": "a", "b/0.jpg": "b"}
    assert len(images.notes) == 1 and images.notes[0].startswith("left out 3 files other than images")


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    fails(lambda: find_images(tmp_path / "no"), str(tmp_path / "no"), "does not exist", "give a folder")
    fails(lambda: find_images(touch(tmp_path / "bare", ["x/readme"])), "no folder with images", "give a folder")
    fails(lambda: find_images(touch(tmp_path / "flat", ["0.jpg"])), "no folder with images, only images")
    fails(lambda: find_images(touch(tmp_path / "one", ["a/0.jpg", "b/readme"])), "one class only, 'a'")
    fails(lambda: find_images(touch(tmp_path, ["0.jpg"]) / "0.jpg"), "neither a folder nor a list")
    fails(lambda: find_images(tmp_path / ("long" * 100)), "does not exist")


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    touch(tmp_path, ["a/0.jpg", "b/0.jpg"])
    os.close(os.open(os.fsencode(tmp_path) + b"/b/\xff.jpg", os.O_CREAT))
    os.close(os.open(os.fsencode(tmp_path) + b"/b/\xff\nx.txt", os.O_CREAT))
    images = find_images(tmp_path)
    assert images.path(2).is_file()
    assert len(images.fingerprint()) == 64
    assert len(class_balanced(images, 0.7, 0)) == 2
    assert "\n" not in images.notes[0]
    images.notes[0].encode()


def test_a_list_with_numbers(tmp_path: Path) -> None:
    touch(tmp_path, ["x/0.jpg", "x/my cat.jpg", "2", "3.jpg"])
    path = write(
        tmp_path / "list.txt", "x/0.jpg 3", "", "# comment", "x/my cat.jpg\t01", "./2  0", f"{tmp_path}/3.jpg 3"
    )
    images = find_images(path)
    assert images.root == tmp_path and images.classes == ("0", "1", "2", "3")
    assert pairs(images) == {"2": "0", "3.jpg": "3", "x/0.jpg": "3", "x/my cat.jpg": "1"}
    assert images.notes == (f"1 of the classes 0 to 3 have no images in {path}: first 2",)


def test_a_list_with_names(tmp_path: Path) -> None:
    touch(tmp_path, ["0.jpg", "1, or 2.jpg", "2.jpg"])
    path = write(tmp_path / "list.csv", "id,label,path", "9,dog,0.jpg", '8,cat,"1, or 2.jpg"', "7,12,2.jpg")
    images = find_images(path)
    assert images.classes == ("12", "cat", "dog")
    assert pairs(images) == {"0.jpg": "dog", "1, or 2.jpg": "cat", "2.jpg": "12"}
    assert images.notes == (f"labels of {path} are taken as names, the numbers too: 'dog' is no number",)


def test_lines_that_cannot_be_used_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    touch(tmp_path, ["a.jpg", "b.jpg", "c.jpg", "d.jpg"])
    lines = ["a.jpg 0", "lonely", "my pet.jpg", "c.jpg -1", "c.jpg 1000001", "b.jpg 1", "gone.jpg 1", "far.jpg 0"]
    lines += ["a.jpg 0", "d.jpg 0", "./d.jpg 1", "d.jpg 0"]
    images = find_images(write(path := tmp_path / "list.txt", *lines))
    assert pairs(images) == {"a.jpg": "0", "b.jpg": "1"}
    broken, missing, torn = images.notes
    assert broken.startswith(f"left out 4 lines of {path} ") and broken.endswith("the first is line 2, 'lonely'")
    assert missing == (
        f"left out 2 lines of {path} whose file is not to be found below {tmp_path}: "
        "the first is line 7, 'gone.jpg 1'"
    )
    assert torn == (
        f"left out 1 line of {path} whose file has another label in a line before, and is not used at all: "
        "line 11, './d.jpg 1'"
    )


def test_numbered_classes_may_have_gaps_but_not_be_nearly_all_empty(tmp_path: Path) -> None:
    touch(tmp_path, ["a.jpg", "b.jpg"])
    images = find_images(write(tmp_path / "list.txt", "a.jpg 199", "b.jpg 7"))
    assert images.labels.tolist() == [199, 7] and len(images.classes) == 200
    said = ("2 different labels, the largest of them 200", "201 classes", "number them from 0 on")
    fails(lambda: find_images(write(tmp_path / "list.txt", "a.jpg 200", "b.jpg 7")), *said)


def test_classes_of_which_a_list_names_none_are_left_out(tmp_path: Path) -> None:
    source = touch(tmp_path / "set", ["a/0.jpg", "b/1.jpg", "c/2.jpg", "c/3.jpg"])
    images = only_listed(find_images(source), write(path := tmp_path / "some.txt", "0.jpg", "3.jpg"))
    assert images.classes == ("a", "c") and images.labels.tolist() == [0, 1]
    assert images.notes == (f"left out 1 class name of which {path} names no image: 'b'",)


def test_where_labels_are_not_used_images_need_none(tmp_path: Path) -> None:
    flat = touch(tmp_path / "flat", ["0.jpg", "1.png", "readme"])
    images = find_images(flat, labels=False)
    assert list(images.names) == ["0.jpg", "1.png"] and images.path(0).exists() and len(images.classes) == 1
    one = find_images(touch(tmp_path / "one", ["a/b/0.jpg", "a/1.jpg"]), labels=False)
    assert list(one.names) == ["a/1.jpg", "a/b/0.jpg"]
    classes = find_images(touch(tmp_path / "two", ["a/0.jpg", "b/1.jpg"]), labels=False)
    assert classes.classes == ("a", "b"), "they are of use to watch what is learned"
    fails(lambda: find_images(touch(tmp_path / "bare", ["readme"]), labels=False), "holds no images")


def test_what_is_meant_is_guessed(tmp_path: Path) -> None:
    touch(tmp_path / "set", ["train/a/0.jpg", "train/b/1.jpg"])
    fails(lambda: find_images(tmp_path / "set"), "one class only, 'train'", f"give {tmp_path / 'set' / 'train'}, if")
    touch(tmp_path / "corpus", ["corpus.json"])
    fails(lambda: find_images(tmp_path / "corpus"), "is a corpus of videos", "--corpus")
    touch(tmp_path / "both", ["train/a/0.jpg", "train/b/1.jpg", "val/b/2.jpg"])
    test = find_test_images(tmp_path / "set" / "train", tmp_path / "both", ("a", "b"))
    assert test is not None and list(test.names) == ["b/2.jpg"] and test.source == tmp_path / "both" / "val"


def test_lists_that_cannot_be_used(tmp_path: Path) -> None:
    touch(tmp_path, ["a.jpg", "b.jpg"])
    path = tmp_path / "list.txt"
    fails(lambda: find_images(write(path, "")), str(path), "no image that can be used", "give a folder")
    fails(lambda: find_images(write(path, "x.jpg 1", "y.jpg 2")), "not to be found", "'x.jpg 1'")
    fails(lambda: find_images(write(path, "a.jpg", "b.jpg")), "left out 2 lines", "line 1, 'a.jpg'")
    fails(lambda: find_images(write(path, "a.jpg 1", "b.jpg 1")), "one class only, '1'")
    path.write_bytes(b"\xff\xd8\xff\x00")
    fails(lambda: find_images(path), str(path), "not text")
    (tmp_path / "folder.csv").mkdir()
    fails(lambda: find_images(tmp_path / "folder.csv"), "no folder with images")
    table = tmp_path / "list.csv"
    fails(lambda: find_images(write(table, "file,class", "a.jpg,1")), str(table), "no columns path and label")
    fails(lambda: find_images(write(table, "")), "no columns path and label")
    fails(lambda: find_images(write(table, "path,label", f"{'x' * 200_000},1")), "line 2 is no CSV")
    fails(lambda: find_images(write(table, "path,label", "a.png,1", '"b.png,1', "c.png,2")), "line 3 is no CSV")


def test_a_path_with_a_line_break_is_named_and_loses_nothing_else(tmp_path: Path) -> None:
    for name in ("a.png", "bc.png", "d.png"):
        (tmp_path / name).touch()
    found = find_images(write(tmp_path / "list.csv", "path,label", "a.png,0", '"b', 'c.png",0', '"d.png",1'))
    assert [Path(path).name for path in found.files()] == ["a.png", "d.png"]
    assert any("left out 1 line" in note and r"'b\nc.png 0'" in note for note in found.notes)


def test_only_listed_images_by_path_or_by_their_last_part(tmp_path: Path) -> None:
    source = touch(tmp_path / "set", ["a/a_0.jpg", "a/a_1.jpg", "b/b_0.jpg", "b/same.jpg", "a/same.jpg"])
    names = ["a_1.jpg", "b/same.jpg", "b/b_0.jpg", "a_1.jpg", "gone_1.jpg", "gone_2.jpg"]
    everything = write(tmp_path / "some.txt", *names), tmp_path / "some.json", tmp_path / "label_map_count_3_index_0"
    for path in everything[1:]:
        path.write_text(json.dumps({"values": names}))
    for path in everything:
        images = only_listed(find_images(source), path)
        assert list(images.names) == ["a/a_1.jpg", "b/b_0.jpg", "b/same.jpg"] and images.labels.tolist() == [0, 1, 1]
        assert images.notes == (
            f"left out 2 names in {path} of no image in {source}, or of several (write their paths from there): "
            "the first is 'gone_1.jpg'",
        )
    images = only_listed(find_images(source), write(everything[0], "a_0.jpg", "b_0.jpg", "same.jpg"))
    assert len(images) == 2 and "or of several" in images.notes[0] and "'same.jpg'" in images.notes[0]


def test_listed_names_that_cannot_be_used(tmp_path: Path) -> None:
    source = touch(tmp_path / "set", ["a/0.jpg", "b/1.jpg", "c/2.jpg", "c/same.jpg", "b/same.jpg"])
    path = tmp_path / "some.txt"
    fails(lambda: only_listed(find_images(source), path), str(path), "cannot be read")
    fails(lambda: only_listed(find_images(source), write(path, "x.jpg")), "no image", "'x.jpg'")
    fails(lambda: only_listed(find_images(source), write(path, "same.jpg")), "no image", "write their paths from")
    fails(lambda: only_listed(find_images(source), write(path, "")), "no image", "give a .txt")
    fails(lambda: only_listed(find_images(source), write(path, "0.jpg")), "one class only, 'a'; give a .txt")
    for wrong in ("[]", "{}", '{"values": 3}', '{"values": [1]}', "{", '{"values": ' + "[" * 100_000):
        path = write(tmp_path / "some.json", wrong)
        fails(partial(only_listed, find_images(source), path), str(path), "no file names", '"values"')


def test_the_same_number_from_every_class() -> None:
    rng = np.random.default_rng(0)
    for classes, fraction in ((2, 0.5), (3, 0.29), (10, 0.1), (7, 0.333)):
        images = unequal(rng.integers(100, 130, classes).tolist())
        part = class_balanced(images, fraction, seed=3)
        each = int(fraction * len(images) / classes + 1e-9)
        assert Counter(part.labels.tolist()) == dict.fromkeys(range(classes), each)
        assert list(part.names) == sorted(part.names) and pairs(part).items() <= pairs(images).items()
        assert part.classes == images.classes and part.root == images.root
    # 10 % of ImageNet, as S4L takes them.
    assert np.bincount(class_balanced(unequal([128 * 10 + 1] * 10), 0.1, 0).labels).tolist() == [128] * 10
    # 29 % of 100 is 29, not 28.
    assert len(class_balanced(unequal([100, 100]), 0.29, 0)) == 58


def test_which_images_are_taken_is_decided_by_the_hashes_of_their_names() -> None:
    images = unequal([40, 50, 60])
    part = class_balanced(images, 0.2, seed=5)
    for label in range(3):
        names = [name for name, of in zip(images.names, images.labels, strict=True) if of == label]
        names.sort(key=lambda name: hashlib.blake2b(f"5 {name}".encode(), digest_size=8).digest())
        assert {name for name in part.names if name.startswith(f"c{label:02}/")} == set(names[:10])


def test_a_smaller_fraction_is_a_part_of_a_larger_one_and_another_seed_takes_others() -> None:
    images = unequal([200, 220, 240])
    parts = [set(class_balanced(images, fraction, 1).names) for fraction in (0.05, 0.1, 0.2, 0.4, 0.9)]
    assert all(small < large for small, large in itertools.pairwise(parts))
    others = set(class_balanced(images, 0.2, 2).names)
    assert len(parts[2] & others) < 0.4 * len(others)
    assert class_balanced(images, 1, 1) is images


def test_more_files_change_little() -> None:
    before = set(class_balanced(unequal([1000, 1000]), 0.1, 0).names)
    after = set(class_balanced(unequal([1010, 1010]), 0.1, 0).names)
    assert len(before - after) <= 10


def test_classes_without_images_do_not_count(tmp_path: Path) -> None:
    touch(tmp_path, [f"{number}.jpg" for number in range(20)])
    images = find_images(write(tmp_path / "list.txt", *(f"{number}.jpg {1 + number % 2}" for number in range(20))))
    assert np.bincount(class_balanced(images, 0.5, 0).labels).tolist() == [0, 5, 5]


def test_fractions_that_cannot_be_taken_name_one_that_can() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        images = unequal(rng.integers(1, 600, int(rng.integers(2, 20))).tolist())
        sizes = np.bincount(images.labels)
        smallest = f"the smallest, 'c{sizes.argmin():02}', has {sizes.min():,};"
        for fraction, each in ((1e-7, 1), (0.999999, sizes.min())):
            with pytest.raises(UserError, match=smallest) as error:
                class_balanced(images, fraction, 0)
            named = re.search(r"give (\S+) or", str(error.value))
            assert named is not None
            assert set(np.bincount(class_balanced(images, float(named[1]), 0).labels)) == {each}


def test_the_fingerprint_tells_names_labels_and_classes_apart() -> None:
    images = unequal([3, 4])
    names, labels, classes = list(images.names), images.labels, images.classes
    one = images.fingerprint()
    assert (
        LabelledImages(
            Path("list.txt"), Path("elsewhere"), tuple(names), labels.copy(), classes, ("a note",)
        ).fingerprint()
        == one
    )
    others = [
        LabelledImages(images.source, images.root, [*names[:-1], "c01/x.jpg"], labels, classes),
        LabelledImages(images.source, images.root, names, labels[::-1].copy(), classes),
        LabelledImages(images.source, images.root, names, labels, ("c00", "x")),
        class_balanced(images, 0.3, 0),
    ]
    assert len({one, *(other.fingerprint() for other in others)}) == 5


def test_twenty_thousand_images_are_scanned_at_once(tmp_path: Path) -> None:
    touch(tmp_path, (f"00/{number}.jpg" for number in range(1000)))
    for label in range(1, 20):
        (tmp_path / f"{label:02}").symlink_to(tmp_path / "00")
    begin = time.process_time()
    images = find_images(tmp_path)
    part = class_balanced(images, 0.1, 0)
    assert part.fingerprint() != images.fingerprint()
    assert time.process_time() - begin < 2
    assert len(images) == 20_000 and np.bincount(part.labels).tolist() == [100] * 20
