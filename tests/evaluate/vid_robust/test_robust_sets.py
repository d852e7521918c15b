"""Sets in the metadata format of ImageNet-Vid-Robust: what is read, what is left out and named, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vivi.evaluate.metadata import counted
from vivi.evaluate.vid_robust.predictions import outputs_of_classes
from vivi.evaluate.vid_robust.sets import ClassMap, RobustSet, find_frames, find_metadata, read_class_map, read_set
from vivi.runtime.errors import UserError

PMSETS: dict[str, Any] = {"val/a/10.png": ["val/a/09.png", "val/a/12.png"], "val/b/5.png": []}
LABELS: dict[str, Any] = {"val/a/10.png": [0], "val/a/09.png": [0, 2], "val/a/12.png": 1, "val/b/5.png": [2]}


def write(folder: Path, **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- what is read ---


def test_a_set_has_anchors_distances_labels_and_numbers_for_names(tmp_path: Path) -> None:
    robust = read_set(write(tmp_path / "mine", pmsets=PMSETS, labels=LABELS))
    assert (robust.name, robust.notes, robust.class_map) == ("mine", (), None)
    assert {anchor.frame: anchor.neighbours for anchor in robust.anchors} == {
        "val/a/10.png": (("val/a/09.png", -1), ("val/a/12.png", 2)),
        "val/b/5.png": (),
    }
    assert robust.labels["val/a/09.png"] == {0, 2} and robust.labels["val/a/12.png"] == {1}
    assert robust.classes == ("0", "1", "2") and robust.k == 2 and len(robust.frames()) == 4
    near = read_set(tmp_path / "mine", farthest=1)
    assert near.frames() == ["val/a/09.png", "val/a/10.png", "val/b/5.png"] and near.anchors == robust.anchors
    assert near.checksums()[0] != robust.checksums()[0] and robust.checksums()[1] == ""


def test_the_archive_of_the_authors_is_read_as_it_is(tmp_path: Path) -> None:
    archive = tmp_path / "imagenet-vid-robust"
    write(archive / "metadata", pmsets=PMSETS, labels=LABELS)
    names = {"1": ["n1", "bear"], "0": ["n0", "airplane"], "2": ["n2", "zebra"]}
    write(archive / "misc", imagenet_vid_class_index=names)
    (archive / "val" / "a").mkdir(parents=True)
    (archive / "val" / "a" / "10.png").touch()
    for frames in (archive, archive / "val"):
        assert find_metadata(None, frames).resolve() == archive / "metadata"
        root, there = find_frames(frames, list(LABELS))
        assert (root.resolve(), there) == (archive, ["val/a/10.png"])
    assert find_metadata(archive, None) == archive / "metadata"
    robust = read_set(archive / "metadata")
    assert (robust.name, robust.classes) == ("imagenet-vid-robust", ("airplane", "bear", "zebra"))


def test_frames_are_never_taken_from_the_folder_beside(tmp_path: Path) -> None:
    (tmp_path / "val" / "a").mkdir(parents=True)
    (tmp_path / "val" / "a" / "10.png").touch()
    (tmp_path / "other").mkdir()
    assert find_frames(tmp_path / "val", list(LABELS))[1] == ["val/a/10.png"]
    assert find_frames(tmp_path / "other", list(LABELS)) == (tmp_path / "other", [])


@pytest.mark.parametrize(
    "content",
    [
        {"0": [4], "2": [1, 7]},
        {"4": 0, "1": 2, "7": 2},
        {"airplane": [4], "zebra": [7, 1]},
        {"4": "airplane", "7": "zebra", "1": "zebra"},
    ],
)
def test_a_class_map_goes_either_way(content: Any, tmp_path: Path) -> None:
    write(tmp_path, map=content)
    assert read_class_map(tmp_path / "map.json", ("airplane", "bear", "zebra"), 3) == ((4,), (), (1, 7))


def test_the_metadata_have_a_class_map_or_users_bring_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", pmsets=PMSETS, labels=LABELS, class_idx_map={"5": 0, "6": 1, "9": 2})
    assert read_set(folder).class_map == ((5,), (6,), (9,))
    write(folder, rev_class_idx_map={"0": [3], "1": [4], "2": [5]})
    assert read_set(folder).class_map == ((3,), (4,), (5,))
    write(tmp_path, other={"0": [0], "1": [1], "2": [2]})
    other = read_set(folder, tmp_path / "other.json")
    assert other.class_map == ((0,), (1,), (2,)) and other.map_given and not read_set(folder).map_given
    # It is the same set, whatever outputs mean its classes.
    assert other.checksums()[0] == read_set(folder).checksums()[0]
    assert other.checksums()[1] != read_set(folder).checksums()[1]


# --- which outputs mean a class ---


def fitting(
    class_map: ClassMap | None,
    classes: tuple[str, ...],
    outputs: int,
    names: tuple[str, ...] | None = None,
    given: bool = False,
) -> tuple[ClassMap | None, list[str]]:
    return outputs_of_classes(RobustSet("mine", (), {}, classes, class_map, given), outputs, names)


def test_classifiers_of_the_same_classes_are_matched_by_name_or_by_number() -> None:
    classes = ("a", "b", "c")
    assert fitting(None, classes, 3, ("a", "b", "c")) == (None, [])
    assert fitting(None, classes, 3, ("c", "a", "b")) == (((1,), (2,), (0,)), [])
    found, notes = fitting(None, classes, 4, ("c", "x", "a", "b"))
    assert found == ((2,), (3,), (0,)) and "1 classes of the classifier" in notes[0]
    assert fitting(None, classes, 3) == (None, [])
    assert fitting(None, ("0", "1", "2"), 3, ("x", "y", "z")) == (None, [])


def test_the_sets_own_class_map_is_for_the_classes_of_imagenet() -> None:
    class_map, classes = ((4,), (), (1, 914)), ("0", "1", "2")
    assert fitting(class_map, classes, 1000)[0] == class_map
    assert fitting(class_map, classes, 3)[0] is None  # it knows these very classes
    for outputs in (915, 999, 1001, 21843):
        assert refusal(lambda count=outputs: fitting(class_map, classes, count)) == (  # type: ignore[misc]
            f"the classifier has {outputs:,} classes, the set 3 and a class map for ImageNet's 1,000: "
            "a --class-map must say which of them belong together"
        )
    assert fitting(class_map, ("a", "b", "c"), 1001, tuple("cab") + ("x",) * 998)[0] == ((1,), (2,), (0,))


def test_a_class_map_that_users_give_must_fit() -> None:
    class_map, classes = ((4,), (), (1, 7)), ("a", "b", "c")
    for outputs in (8, 1001):
        assert fitting(class_map, classes, outputs, given=True)[0] == class_map
    for names in (None, classes):
        line = refusal(lambda known=names: fitting(class_map, classes, 3, known, given=True))  # type: ignore[misc]
        assert "names output 7, the classifier has 3" in line


def test_a_class_map_that_stops_short_leaves_no_class_out(tmp_path: Path) -> None:
    folder = write(tmp_path, pmsets=PMSETS, labels=LABELS, rev_class_idx_map={"0": [3]})
    robust = read_set(folder)
    assert robust.class_map == ((3,), (), ()) and len(robust.classes) == 3 and len(robust.anchors) == 2
    write(folder, rev_class_idx_map={"0": [3], "3": [4]})
    assert len(read_set(folder).classes) == 4  # a part of a set may lack labels that its map has
    write(folder, rev_class_idx_map={"0": [3], "99999": [4]})
    assert "at class '99999' and output 4: classes must be those of the set" in refusal(lambda: read_set(folder))
    ytbb = write(write_ytbb(tmp_path / "ytbb"), rev_class_idx_map={"1": [3]})
    (ytbb / "ytbb_class_index.json").unlink()
    assert len(read_set(ytbb).classes) == 24
    write(ytbb, rev_class_idx_map={"24": [3]})
    assert len(read_set(ytbb).classes) == 25


def test_classes_that_do_not_fit_are_refused() -> None:
    assert "has 1,000 classes, the set 30:" in refusal(lambda: fitting(None, tuple(map(str, range(30))), 1000))
    line = refusal(lambda: fitting(None, ("a", "b"), 2, ("a", "rose")))
    assert "does not know 1 of the set's 2 classes, 'b'" in line


def test_the_unit_of_k_is_noted(tmp_path: Path) -> None:
    views = {"o/350.png": ["o/340.png", "o/355.png"]}
    robust = read_set(write(tmp_path, pmsets=views, labels=dict.fromkeys(["o/350.png", *views["o/350.png"]], 0)))
    assert robust.anchors[0].neighbours == (("o/340.png", -2), ("o/355.png", 1))
    assert robust.notes == ("the numbers of frames go up by 5: k counts steps of 5",)


def test_one_anchor_is_one_anchor() -> None:
    assert [counted(count, "anchor") for count in (0, 1, 1109)] == ["0 anchors", "1 anchor", "1,109 anchors"]


# --- what is left out ---


def test_bad_rows_are_left_out_counted_and_named(tmp_path: Path) -> None:
    pmsets = PMSETS | {"val/d/1.png": [], "val/e/1.png": [], "val/f/1.png": ["val/f/one.png"]}
    pmsets["val/b/5.png"] = ["val/b/5.png", "val/b/6.png", "val/b/7.png", "val/b/7.png"]
    labels = (
        LABELS | {"val/e/1.png": [3], "val/b/7.png": [0]} | {frame: [0] for frame in ("val/f/1.png", "val/f/one.png")}
    )
    robust = read_set(write(tmp_path, pmsets=pmsets, labels=labels, classes=["x", "y", "z"]))
    assert [anchor.frame for anchor in robust.anchors] == ["val/a/10.png", "val/b/5.png"]
    assert robust.anchors[1].neighbours == (("val/b/7.png", 2),)  # itself and a second time are nothing new
    unlabelled, strangers, unclear = robust.notes
    why = "are left out, no label from 0 to 2, or their paths lead out of the folder"
    assert unlabelled == f"2 anchors {why}: 'val/d/1.png', 'val/e/1.png'"
    assert strangers == f"1 neighbours {why}: 'val/b/6.png'"
    assert unclear.startswith("1 anchors are left out, numbers do not tell how far") and "'val/f/1.png'" in unclear


def test_frames_whose_paths_lead_out_of_the_folder_are_left_out_and_named(tmp_path: Path) -> None:
    out = ["/etc/passwd", "../x.png", "val/../../y.png"]
    pmsets = PMSETS | {out[0]: ["val/a/09.png"], "val/b/5.png": [*out[1:], "val/b/7.png"]}
    labels = LABELS | dict.fromkeys([*out, "val/b/7.png"], 0)
    robust = read_set(write(tmp_path, pmsets=pmsets, labels=labels, classes=["x", "y", "z"]))
    assert [anchor.frame for anchor in robust.anchors] == ["val/a/10.png", "val/b/5.png"]
    assert robust.anchors[1].neighbours == (("val/b/7.png", 2),)
    anchors, neighbours = robust.notes
    assert anchors.startswith("1 anchors are left out, ") and anchors.endswith(f"lead out of the folder: {out[0]!r}")
    assert neighbours.startswith("2 neighbours are left out, ") and all(
        repr(frame) in neighbours for frame in out[1:]
    )


@pytest.mark.parametrize("label", [[], [-1], [0, 9], 3])
def test_impossible_labels_are_no_labels(label: Any, tmp_path: Path) -> None:
    folder = write(tmp_path, pmsets=PMSETS, labels=LABELS | {"val/b/5.png": label}, classes=["x", "y", "z"])
    robust = read_set(folder)
    assert len(robust.anchors) == 1 and "1 anchors are left out, no label" in robust.notes[0]


def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    assert f"there is no pmsets.json in {tmp_path}" in refusal(lambda: find_metadata(tmp_path, None))
    write(tmp_path, pmsets=PMSETS)
    assert "labels.json cannot be read: No such file" in refusal(lambda: read_set(tmp_path))
    for labels, said in (
        ([], "labels.json is not in the format"),
        ({}, "has no anchors; 2 anchors are left out, no label"),
    ):
        write(tmp_path, labels=labels)
        assert said in refusal(lambda: read_set(tmp_path))
    (tmp_path / "labels.json").write_text("{")
    assert "labels.json is no JSON (" in refusal(lambda: read_set(tmp_path))
    write(tmp_path, pmsets={}, labels=LABELS)
    assert refusal(lambda: read_set(tmp_path)) == f"{tmp_path} has no anchors"
    write(tmp_path, pmsets=PMSETS)
    wrong: tuple[object, ...] = (None, "zebra", [None], [0.5], {})
    for label in wrong:
        write(tmp_path, labels=LABELS | {"val/b/5.png": label})
        assert "labels.json is not in the format that is expected: Expected" in refusal(lambda: read_set(tmp_path))
    write(tmp_path, labels=LABELS, pmsets={"a": "b"})
    assert "pmsets.json is not in the format that is expected: Expected" in refusal(lambda: read_set(tmp_path))
    write(tmp_path, pmsets=PMSETS)
    for classes, said in (
        (["a", "a"], "must name the classes"),
        ({"1": "a"}, "must name the classes"),
        ([1, 2], "is not in the format"),
        ("abc", "is not in the format"),
    ):
        write(tmp_path, classes=classes)
        assert f"classes.json {said}" in refusal(lambda: read_set(tmp_path))
    write(tmp_path, classes=["a", "b", "c"])
    for content, said in (
        ({}, "is no class map: it names no outputs"),
        ("x", "is not in the format that is expected"),
        ({"0": ["x"]}, "is not in the format that is expected"),
        ({"0": [1], "1": 2}, "at class 2 and output '1'"),
        ({"d": [1]}, "at class 'd' and output 1"),
        ({"1": "d"}, "at class 'd' and output '1'"),
        ({"0": []}, "names no outputs"),
        ({"0": [1, 2], "2": [2]}, "at class '2' and output 2"),
        ({"3": [1]}, "at class '3' and output 1"),
        ({"-1": 0}, "at class 0 and output '-1'"),
    ):
        write(tmp_path, rev_class_idx_map=content)
        assert said in refusal(lambda: read_set(tmp_path))


# --- YTBB-Robust ---

WORDS = ["good", "unsure", "bad", "person", "cat", "car", "none"]
ROWS = [
    ("aa_100/frame-3.jpg", [0]),
    ("/home/them/bb_200/frame-9.jpg", [0, 4]),
    ("cc_1/frame-1.jpg", [2]),
    ("dd_1/frame-1.jpg", [0, 1]),
    ("ee_1/frame-1.jpg", [3]),
    ("ff_1/frame-1.jpg", [0]),
]
TABLE = "ytid,time_ms,label\naa,100,0\nbb,200,22\ncc,1,1\nzz,1,1\n"


def write_ytbb(folder: Path) -> Path:
    rows = [{"key": key, "notes": "", "labels": labels} for key, labels in ROWS]
    index = {str(number): f"class {number}" for number in range(24)} | {"0": "person", "1": "cat", "23": "car"}
    write(folder, anchor_labels={"annotations": rows, "labels": WORDS}, ytbb_class_index=index)
    (folder / "ytbb_robustness_test_anchors_full.csv").write_text(TABLE)
    return folder


def test_anchors_of_ytbb_are_those_that_reviewers_called_good(tmp_path: Path) -> None:
    robust = read_set(write_ytbb(tmp_path / "ytbb-robust"))
    assert {anchor.frame: anchor.neighbours for anchor in robust.anchors} == {
        "aa_100/frame-3.jpg": (),
        "bb_200/frame-9.jpg": (),
    }
    # Their own class of YouTube-BB, whose 22 is car, and what the reviewers added.
    assert robust.labels == {"aa_100/frame-3.jpg": {0}, "bb_200/frame-9.jpg": {1, 23}}
    assert robust.k == 0 and len(robust.classes) == 24 and robust.classes[23] == "car"
    alone, left_out, unlabelled = robust.notes
    assert left_out == "4 of 7 anchors are left out: 3 not called good by the reviewers, 1 never reviewed"
    assert "there is no pmk_labels.json" in alone and "'ff_1/frame-1.jpg'" in unlabelled
    assert find_metadata(None, tmp_path / "ytbb-robust") == tmp_path / "ytbb-robust"


def test_neighbours_of_ytbb_are_frames_that_were_called_similar(tmp_path: Path) -> None:
    words = ["similar", "dissimilar", "correct", "bad-anchor", "blur-increase"]
    pairs = [
        ("them/aa_100/frame-3.jpg,them/aa_100/frame-1.jpg", [0, 2]),
        ("aa_100/frame-3.jpg,aa_100/frame-4.jpg", [0]),
        ("aa_100/frame-3.jpg,aa_100/frame-5.jpg", [1]),
        ("aa_100/frame-3.jpg,aa_100/frame-2.jpg", [0, 4]),
        ("bb_200/frame-9.jpg,bb_200/frame-8.jpg", [3]),
    ]
    rows = [{"key": key, "labels": labels} for key, labels in pairs]
    folder = write(write_ytbb(tmp_path), pmk_labels={"annotations": rows, "labels": words})
    robust = read_set(folder)
    [anchor] = robust.anchors
    assert anchor.neighbours == (("aa_100/frame-1.jpg", -2), ("aa_100/frame-4.jpg", 1))
    assert robust.labels["aa_100/frame-4.jpg"] == {0}
    assert robust.notes[0].startswith("5 of 7 anchors are left out: 4 not called good")


def test_damaged_files_of_ytbb_are_named(tmp_path: Path) -> None:
    folder = write_ytbb(tmp_path)
    (folder / "ytbb_robustness_test_anchors_full.csv").write_text("ytid,label\nx,1\n")
    assert "is no table of ytid, time_ms and label" in refusal(lambda: read_set(folder))
    (folder / "ytbb_robustness_test_anchors_full.csv").unlink()
    robust = read_set(folder)
    assert len(robust.anchors) == 1 and "only classes that the reviewers added" in robust.notes[0]
    write(folder, anchor_labels={"annotations": [{"key": "a/b.jpg", "labels": [99]}], "labels": WORDS})
    assert "anchor_labels.json has reviews with labels that it does not name" in refusal(lambda: read_set(folder))
