"""vivi evaluate vid-robust: predictions of runs, of timm models and of files, their scores, and the contact sheet."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from torch import nn

from vivi import recipes
from vivi.data.decode import read_image
from vivi.data.squares import central_square
from vivi.evaluate.results import RobustResult, read_result
from vivi.evaluate.vid_robust.evaluate import evaluate_robustness
from vivi.evaluate.vid_robust.settings import Robustness
from vivi.evaluate.vid_robust.sheet import GREEN, GREY, RED
from vivi.model.encoder import build_encoder, load_encoder
from vivi.model.files import Classifier, write_classifier, write_encoder
from vivi.runtime.errors import UserError

SIZE, VIDEOS, K = 32, 12, 3
CLASSES = ("bear", "car", "dog")


def frame(video: int, number: int) -> str:
    return f"val/video{video:02d}/{number:06d}.png"


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve videos of textures that move: the anchor is frame 20, the last video has no neighbours."""
    folder = tmp_path_factory.mktemp("sets") / "films"
    random = np.random.default_rng(0)
    pmsets, labels = {}, {}
    for video in range(VIDEOS):
        texture = random.integers(0, 256, (12, 16, 3)).astype(np.uint8)
        around = [20 + offset for offset in range(-K, K + 1) if offset] if video < VIDEOS - 1 else []
        pmsets[frame(video, 20)] = [frame(video, number) for number in around]
        for number in (20, *around):
            path = folder / frame(video, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.roll(texture, number, axis=1)).resize((60, 44)).save(path)
            labels[frame(video, number)] = [video % 3] if video % 4 else [video % 3, (video + 1) % 3]
    for name, content in (("pmsets", pmsets), ("labels", labels), ("classes", CLASSES)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def labels_of(folder: Path) -> dict[str, list[int]]:
    return dict(json.loads((folder / "labels.json").read_text()))


def evaluate(encoder: object, out: Path, **others: Any) -> tuple[RobustResult, str]:
    console = Console(file=io.StringIO(), width=10_000)
    result = evaluate_robustness(Robustness(encoder=str(encoder), out=out, **others), console, "cpu")
    assert isinstance(console.file, io.StringIO)
    return result, console.file.getvalue()


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def slow_scores(folder: Path, said: dict[str, int], k: int) -> int:
    """Anchors that are right with all their frames as far as k."""
    labels, right = labels_of(folder), 0
    for anchor, neighbours in json.loads((folder / "pmsets.json").read_text()).items():
        near = [name for name in neighbours if abs(int(name[-10:-4]) - 20) <= k]
        right += all(said.get(name) in labels[name] for name in (anchor, *near))
    return right


# --- classifiers ---


def write_run(folder: Path, classes: tuple[str, ...]) -> Path:
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    encoder = build_encoder(recipes.Encoder("resnetv2_18", width=0.125), SIZE)
    write_encoder(folder, encoder, "mine", 5)
    weight = torch.randn(len(classes), encoder.features, generator=torch.Generator().manual_seed(1))
    write_classifier(folder, Classifier(weight, torch.zeros(len(classes)), classes), 5)
    return folder


def slow_predictions(
    network: nn.Module, size: int, folder: Path, outputs: list[list[int]], k: int = K
) -> dict[str, int]:
    """One frame after the other; a class scores what the best of its outputs does."""
    said = {}
    for name in labels_of(folder):
        if abs(int(name[-10:-4]) - 20) > k:
            continue
        pixels = central_square(read_image(folder / name), size).float() / 127.5 - 1
        with torch.no_grad():
            logits = network(pixels[None])[0].tolist()
        scores = [max((logits[one] for one in of_class), default=-math.inf) for of_class in outputs]
        said[name] = scores.index(max(scores))
    return said


def test_a_run_is_scored_by_the_names_of_its_classes(frames: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "my-run", ("dog", "bear", "car"))
    result, said = evaluate(run, tmp_path / "out", frames=frames)
    encoder, _ = load_encoder(run)
    head = nn.Linear(encoder(torch.zeros(1, 3, SIZE, SIZE)).shape[1], 3)
    weight = torch.randn(*head.weight.shape, generator=torch.Generator().manual_seed(1))
    head.load_state_dict({"weight": weight, "bias": torch.zeros(3)})
    expected = slow_predictions(nn.Sequential(encoder, head).eval(), SIZE, frames, [[1], [2], [0]])
    assert [one.right for one in result.curve.strict] == [slow_scores(frames, expected, k) for k in range(K + 1)]
    assert 0 < result.curve.strict[0].right < VIDEOS
    assert (result.encoder, result.set, result.classes, result.reduction) == ("my-run", "films", 3, None)
    assert (result.anchors, result.frames, result.curve.missing) == (VIDEOS, 1 + (VIDEOS - 1) * (2 * K + 1), ())
    assert said.splitlines()[-1].startswith("my-run: anchors ") and f", PM-{K} " in said
    assert said.splitlines()[-1].endswith(" points; 12 anchors")
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".json", ".png"]
    assert read_result(tmp_path / "out" / result.file_name) == result and result.versions["torch"]
    # The folder inside will do, and the metadata beside it.
    again, _ = evaluate(run, tmp_path / "out", frames=frames / "val", metadata=frames)
    assert replace(again, seconds=0) == replace(result, seconds=0)
    near, _ = evaluate(run, tmp_path / "near", frames=frames, farthest=1)
    assert near.curve.strict == result.curve.strict[:2] and near.frames == 1 + (VIDEOS - 1) * 3


def test_a_timm_model_is_scored_through_the_class_map(frames: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    network: nn.Module = timm.create_model("test_resnet", num_classes=9).eval()
    weights = tmp_path / "mine.safetensors"
    save_file(network.state_dict(), weights)
    outputs = [[0, 5], [3, 8, 2], [1]]
    (tmp_path / "map.json").write_text(json.dumps(dict(enumerate(outputs))))
    flags: dict[str, Any] = {"weights": weights, "frames": frames, "class_map": tmp_path / "map.json", "farthest": 1}
    result, _ = evaluate("timm:test_resnet", tmp_path / "out", **flags)
    expected = slow_predictions(network, 160, frames, outputs, 1)
    assert [one.right for one in result.curve.strict] == [slow_scores(frames, expected, k) for k in (0, 1)]
    assert 0 < result.curve.strict[0].right < VIDEOS
    assert (result.encoder, result.reduction) == ("test_resnet (mine)", "max")
    line = refusal(lambda: evaluate("timm:test_resnet", tmp_path / "out", **flags, reduction="mean"))
    assert "has a result of test_resnet (mine) with --reduction max: give --name" in line
    assert (
        evaluate("timm:test_resnet", tmp_path / "out", **flags, reduction="mean", name="mean")[0].reduction == "mean"
    )
    (tmp_path / "map.json").write_text(json.dumps(dict(enumerate([[0], [9], [1]]))))
    line = refusal(lambda: evaluate("timm:test_resnet", tmp_path / "two", **flags))
    assert "names output 9, the classifier has 9, from 0 on" in line
    del flags["class_map"]
    line = refusal(lambda: evaluate("timm:test_resnet", tmp_path / "two", **flags))
    assert "has 9 classes, the set 3:" in line
    with torch.no_grad():
        network.get_submodule("fc").get_parameter("weight").neg_()
    save_file(network.state_dict(), weights)
    (tmp_path / "map.json").write_text(json.dumps(dict(enumerate(outputs))))
    line = refusal(lambda: evaluate("timm:test_resnet", tmp_path / "out", **flags, class_map=tmp_path / "map.json"))
    assert "has a result of test_resnet (mine) by another classifier of that name: give --name" in line
    headless = {name: value for name, value in network.state_dict().items() if not name.startswith("fc.")}
    save_file(headless, weights)
    line = refusal(lambda: evaluate("timm:test_resnet", tmp_path / "two", **flags))
    assert "has no fc.weight, the classifier of test_resnet" in line


def test_missing_and_damaged_frames_are_counted_and_named(frames: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", CLASSES)
    some = tmp_path / "some"
    some.mkdir()
    for name in labels_of(frames):
        (some / name).parent.mkdir(parents=True, exist_ok=True)
        (some / name).write_bytes((frames / name).read_bytes())
    gone, damaged = [frame(0, 20), *(frame(1, 20 + offset) for offset in (-3, -2, -1, 1, 2, 3))], frame(2, 18)
    for name in gone:
        (some / name).unlink()
    (some / damaged).write_bytes(b"no picture")
    result, said = evaluate(run, tmp_path / "out", frames=some, metadata=frames)
    assert result.curve.missing == tuple(sorted([*gone, damaged]))
    assert result.curve.complete[0].n == VIDEOS - 1 and result.curve.complete[-1].n == VIDEOS - 3
    assert all(one.n == VIDEOS for one in result.curve.strict)
    assert [one.right for one in result.curve.strict] == [one.right for one in result.curve.complete]
    unreadable, missing = result.notes
    assert unreadable.startswith("1 frames cannot be read: ") and damaged in unreadable
    assert missing.startswith(f"7 frames are missing: {gone[0]!r}, ") and missing.endswith(" and 2 more")
    assert missing in said and "; 8 of 78 frames are missing" in said
    assert "run, missing frames as wrong: anchors " in said
    assert f" of {VIDEOS - 1}, PM-{K} " in said and f" of {VIDEOS - 3}; " in said
    # Frames that come later make the same result whole.
    whole, _ = evaluate(run, tmp_path / "out", frames=frames)
    assert not whole.curve.missing and len([*(tmp_path / "out").glob("*.json")]) == 1


def write_timm(path: Path, bias: float) -> Path:
    """A classifier of three classes, the first with this bias."""
    torch.manual_seed(3)
    network: nn.Module = timm.create_model("test_resnet", num_classes=3)
    with torch.no_grad():
        network.get_submodule("fc").get_parameter("bias")[0] = bias
    save_file(network.state_dict(), path)
    return path


def test_a_classifier_that_answers_with_no_numbers_is_refused(
    frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = write_timm(tmp_path / "nan.safetensors", math.nan)

    def line_of() -> str:
        out = tmp_path / "out"
        return refusal(lambda: evaluate("timm:test_resnet", out, weights=weights, frames=frames, farthest=1))

    assert f"{weights} holds values that are not finite (tensor fc.bias)" in line_of()
    monkeypatch.setattr("vivi.evaluate.encoders.check_values", lambda *_: None)  # finite weights may overflow too
    line = line_of()
    assert line.startswith(f"34 frames were given no class: scores are not numbers: {frame(0, 19)!r}, ")
    assert line.endswith(" and 29 more") and not (tmp_path / "out").exists()


# --- files of predictions ---


def write_predictions(path: Path, rows: dict[str, Any]) -> Path:
    path.write_text(json.dumps(rows))
    return path


def test_hand_made_predictions_have_the_scores_that_they_must(frames: Path, tmp_path: Path) -> None:
    labels = labels_of(frames)
    right = {name: classes[-1] for name, classes in labels.items()}  # any of several will do
    wrong = {name: next(one for one in range(3) if one not in classes) for name, classes in labels.items()}
    one_wrong = right | {frame(video, 21): wrong[frame(video, 21)] for video in range(VIDEOS - 1)}
    one_hot = {name: [float(one == said) for one in range(3)] for name, said in right.items()}
    for name, rows, anchors, farthest in (
        ("right", right, 12, 12),
        ("wrong", wrong, 0, 0),
        ("one", one_wrong, 12, 1),
        ("hot", one_hot, 12, 12),
    ):
        path = write_predictions(tmp_path / f"{name}.json", rows)
        result, said = evaluate("", tmp_path / "out", predictions=path, metadata=frames)
        assert (result.curve.strict[0].right, result.curve.strict[-1].right) == (anchors, farthest)
        assert (result.encoder, result.picture, result.notes) == (name, "", ())
        assert said.startswith(f"{name}: anchors {100 * anchors / 12:.1f} % [")
    assert not [*(tmp_path / "out").glob("*.png")]
    lost = {name: said for name, said in right.items() if name != frame(3, 20)}
    path = write_predictions(tmp_path / "lost.json", lost)
    result, _ = evaluate("", tmp_path / "out", predictions=path, metadata=frames)
    assert result.curve.missing == (frame(3, 20),)
    assert [(one.right, one.n) for one in result.curve.complete] == [(11, 11)] * (K + 1)
    assert [(one.right, one.n) for one in result.curve.strict] == [(11, 12)] * (K + 1)


@pytest.mark.parametrize("row", ["dog", None, {}, 0.5, [1.0, None, 0.0], [math.nan, 0.0, 1.0], [10**400, 0, 0]])
def test_a_file_with_rows_that_are_no_predictions_is_refused(row: Any, frames: Path, tmp_path: Path) -> None:
    path = write_predictions(tmp_path / "rows.json", {frame(0, 20): row})
    line = refusal(lambda: evaluate("", tmp_path / "out", predictions=path, metadata=frames))
    assert "rows.json is no" in line


def test_impossible_predictions_are_missing_and_named_by_what_is_wrong(frames: Path, tmp_path: Path) -> None:
    rows: dict[str, Any] = {name: classes[0] for name, classes in labels_of(frames).items()}
    rows |= {frame(0, 20): 3, frame(1, 20): -1, frame(2, 20): [], frame(3, 20): [0.0] * 9, "val/else.png": 0}
    path = write_predictions(tmp_path / "rows.json", rows)
    result, _ = evaluate("", tmp_path / "out", predictions=path, metadata=frames)
    assert result.curve.missing == tuple(frame(video, 20) for video in range(4))
    others, classes, none, outputs = result.notes
    assert others == "1 rows of rows.json are about frames that are not in the set"
    begins = "rows of rows.json are no predictions"
    assert classes == f"2 {begins} (a class must be one of 0 to 2): {frame(0, 20)!r}, {frame(1, 20)!r}"
    assert none.startswith(f"1 {begins} (the classifier has 0 classes, the set 3: ")
    assert outputs.startswith(f"1 {begins} (the classifier has 9 classes, the set 3: ")


def test_scores_for_many_frames_are_those_of_each_frame(frames: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = {name: random.random(9).tolist() for name in labels_of(frames)}
    (tmp_path / "map.json").write_text(json.dumps(dict(enumerate([[0, 5], [3, 8, 2], [1]]))))
    best = {name: [max(row[0], row[5]), max(row[3], row[8], row[2]), row[1]] for name, row in rows.items()}
    said = {name: scores.index(max(scores)) for name, scores in best.items()}
    path = write_predictions(tmp_path / "rows.json", rows)
    result, _ = evaluate("", tmp_path / "out", predictions=path, metadata=frames, class_map=tmp_path / "map.json")
    assert [one.right for one in result.curve.strict] == [slow_scores(frames, said, k) for k in range(K + 1)]
    (tmp_path / "map.json").write_text(json.dumps(dict(enumerate([[0, 5], [3, 8], [1]]))))
    flags = {"predictions": path, "metadata": frames, "class_map": tmp_path / "map.json"}
    assert "with another --class-map: give --name" in refusal(lambda: evaluate("", tmp_path / "out", **flags))


def test_a_set_of_anchors_alone_has_no_pm_accuracy(frames: Path, tmp_path: Path) -> None:
    labels = {frame(video, 20): [video % 3] for video in range(VIDEOS)}
    (tmp_path / "pmsets.json").write_text(json.dumps({name: [] for name in labels}))
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    path = write_predictions(tmp_path / "said.json", dict.fromkeys(labels, 0))
    result, said = evaluate("", tmp_path / "out", predictions=path, metadata=tmp_path, frames=frames)
    assert len(result.curve.strict) == 1 and result.farthest == 0
    assert said.splitlines()[-1] == "said: anchors 33.3 % [9.9, 65.1]; 12 anchors"


# --- the contact sheet ---


def test_the_sheet_has_a_border_for_each_frame(frames: Path, tmp_path: Path) -> None:
    said = {name: classes[0] for name, classes in labels_of(frames).items()}
    said[frame(1, 19)] = 2
    del said[frame(1, 21)]
    path = write_predictions(tmp_path / "said.json", said)
    result, _ = evaluate("", tmp_path / "out", predictions=path, frames=frames)
    assert result.picture == "said--vid-robust--films.png"
    with Image.open(tmp_path / "out" / result.picture) as sheet:
        colours = {count[1]: count[0] for count in sheet.getcolors(1 << 24) or []}
    cell, inside = 78 * 78, 72 * 72  # a frame with its border
    assert cell - inside <= colours[RED] < cell and cell - inside <= colours[GREY]
    assert 5 * (cell - inside) <= colours[GREEN] < 6 * (cell - inside)
    # An anchor whose own frame is missing shows what is wrong around it.
    near = tmp_path / "some" / frame(1, 19)
    near.parent.mkdir(parents=True)
    near.write_bytes((frames / frame(1, 19)).read_bytes())
    alone, _ = evaluate("", tmp_path / "out3", predictions=path, metadata=frames, frames=tmp_path / "some")
    assert alone.picture
    # All right the next time: no picture is left over.
    said = {name: classes[0] for name, classes in labels_of(frames).items()}
    again, _ = evaluate("", tmp_path / "out2", predictions=write_predictions(path, said), frames=frames)
    assert not again.picture and not [*(tmp_path / "out2").glob("*.png")]


# --- what is refused ---


def test_what_cannot_be_evaluated_is_said_in_one_line(frames: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = write_predictions(tmp_path / "said.json", {frame(0, 20): 0})

    def line(encoder: object = "", **others: Any) -> str:
        return refusal(lambda: evaluate(encoder, out, **others))

    assert "either --encoder" in line(frames=frames) and "either --encoder" in line("run", predictions=path)
    assert "--encoder needs --frames" in line("run", metadata=frames)
    assert "--predictions needs --metadata" in line(predictions=path)
    assert "--weights goes with --encoder timm:NAME" in line(predictions=path, metadata=frames, weights=path)
    assert "--farthest is -1" in line(predictions=path, metadata=frames, farthest=-1)
    assert "there is no folder" in line("run", frames=tmp_path / "nowhere")
    assert "there is no pmsets.json" in line("run", frames=tmp_path)
    assert "untrained:resnet18 has no classifier" in line("untrained:resnet18", frames=frames)
    assert "cannot be read: No such file" in line(predictions=tmp_path / "no.json", metadata=frames)
    empty = write_predictions(tmp_path / "empty.json", {"val/else.png": 0})
    assert line(predictions=empty, metadata=frames).endswith(
        f"has no prediction for any of 78 frames (the first, {frame(0, 17)}: it is not there)"
    )
    wide = write_predictions(tmp_path / "wide.json", {frame(0, 20): [0.0] * 1000})
    assert "has 1,000 classes, the set 3:" in line(predictions=wide, metadata=frames)
    run = write_run(tmp_path / "run", ("bear", "car", "rose"))
    assert "does not know 1 of the set's 3 classes, 'dog'" in line(run, frames=frames)
    (tmp_path / "void").mkdir()
    known = write_run(tmp_path / "known", CLASSES)
    said = line(known, frames=tmp_path / "void", metadata=frames)
    assert f"none of 78 frames is in {tmp_path / 'void'}, the first is {frame(0, 17)}; give --frames" in said
    assert not out.exists()


def test_a_result_on_other_data_or_of_another_file_is_not_lost(frames: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = {name: classes[0] for name, classes in labels_of(frames).items()}
    path = write_predictions(tmp_path / "said.json", said)
    evaluate("", out, predictions=path, metadata=frames)
    evaluate("", out, predictions=path, metadata=frames)
    line = refusal(lambda: evaluate("", out, predictions=path, metadata=frames, farthest=1))
    assert "has a result of said on another set called films, or --farthest: give --name" in line
    write_predictions(path, said | {frame(0, 20): 2})
    line = refusal(lambda: evaluate("", out, predictions=path, metadata=frames))
    assert "has a result of said by another classifier of that name: give --name" in line
    assert evaluate("", out, predictions=path, metadata=frames, name="second")[0].encoder == "second"
