"""What is no plain file in the place of one ends in one line: it is neither waited for nor read into memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vivi.data.image_lists import read_list, read_names
from vivi.evaluate.detection.sets import read_annotations
from vivi.evaluate.metadata import read_json
from vivi.evaluate.models import read_weights
from vivi.evaluate.results import read_all
from vivi.evaluate.tasks import lists
from vivi.model.encoder import build_encoder
from vivi.model.files import Classifier, read_classifier, read_encoder, write_classifier, write_encoder
from vivi.recipes import Encoder
from vivi.recipes.files import read_recipe
from vivi.runtime.errors import UserError
from vivi.runtime.storage import MB, StorageError, Unfit, check_regular, read_file
from vivi.train import checkpoint
from vivi.train.metrics import MetricsLog, read_metrics

pytestmark = pytest.mark.timeout(60)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


KINDS = [fifo, device, sparse]
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "recipe": ("recipe.json", read_recipe),
    "safetensors": ("w.safetensors", read_weights),
    "npz": ("w.npz", read_weights),
    "pickle": ("w.pth", read_weights),
    "task list": ("test.txt", lists.read_list),
    "robust": ("pmsets.json", lambda path: read_json(path, dict)),
    "images": ("images.txt", read_list),
    "images csv": ("images.csv", read_list),
    "names": ("names.json", read_names),
    "coco": ("instances.json", read_annotations),
    "metrics": ("metrics.jsonl", lambda path: read_metrics(path.parent)),
}


def assert_one_line(error: BaseException, name: str) -> None:
    assert "\n" not in str(error) and name in str(error)
    assert any(why in str(error) for why in ("is not a regular file", "is larger than", "is no file")), str(error)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("what", READERS)
def test_each_reader_refuses_it_in_one_line(what: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    name, read = READERS[what]
    make(tmp_path / name)
    with pytest.raises(UserError) as caught:
        read(tmp_path / name)
    assert_one_line(caught.value, name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    encoder = build_encoder(Encoder("resnetv2_18", 0.125), 32)
    write_encoder(path, encoder, "vivi", 1)
    write_classifier(path, Classifier(torch.zeros(2, 3), torch.zeros(2), ("a", "b")), 1)
    return path


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("name", ["encoder.json", "encoder.safetensors", "classifier.json", "classifier.safetensors"])
def test_no_part_of_a_run_is(name: str, make: Callable[[Path], None], run: Path, tmp_path: Path) -> None:
    for path in run.iterdir():
        if path.name != name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    make(tmp_path / name)
    with pytest.raises(UserError) as caught:
        (read_encoder if name.startswith("encoder") else read_classifier)(tmp_path)
    assert_one_line(caught.value, name if make is not sparse or "json" in name else "")


def test_a_bad_file_among_results_is_skipped_by_name(tmp_path: Path) -> None:
    for make in KINDS:
        make(tmp_path / f"{make.__name__}.json")
    found, problems = read_all(tmp_path)
    assert not found and len(problems) == 3
    for line, make in zip(problems, sorted(KINDS, key=lambda kind: kind.__name__), strict=True):
        assert f"{make.__name__}.json cannot be read (is" in line


@pytest.mark.parametrize("make", KINDS)
def test_a_checkpoint_is_set_aside_and_metrics_are_not_begun(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "step-00000002.safetensors")
    with pytest.raises(checkpoint.NothingToRestore, match="is damaged \\(is "):
        checkpoint.restore(tmp_path, pytest.fail)
    make(tmp_path / "metrics.jsonl")
    with pytest.raises(StorageError, match=r"metrics\.jsonl: is "):
        MetricsLog(tmp_path, 3)


def test_a_file_up_to_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert read_file(path, 10) == b"x" * 10
    with pytest.raises(Unfit, match=r"^is larger than 0 MB$"):
        read_file(path, 9)
    with pytest.raises(Unfit, match="Is a directory"):
        check_regular(tmp_path)
    os.truncate(path, 65 * MB)
    with pytest.raises(Unfit, match=r"^is larger than 64 MB$"):
        read_file(path)
