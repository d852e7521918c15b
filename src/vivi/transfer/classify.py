"""vivi evaluate classifier: how often a classifier's first guess, or one of its first five, is an image's class."""

from __future__ import annotations

import itertools
import json
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as vision

from vivi.batches.images import LabelledImages, find_images, find_test_images
from vivi.batches.pictures import read_picture
from vivi.errors import UserError, first_line
from vivi.machine import available_cores
from vivi.model.classifier import Classifier, top_k
from vivi.progress import ProgressLine
from vivi.storage import StorageError, read_file
from vivi.training.distributed import choose_device
from vivi.transfer.classifiers import ImageClassifier, Told, has_names, open_classifier
from vivi.transfer.features import encode
from vivi.transfer.models import Model, checksum
from vivi.transfer.results import Result, Score, read_results, versions, write_result
from vivi.transfer.settings import Classified
from vivi.transfer.subject import check_name

BATCH = 256
AHEAD = 3  # batches that are being read while another one is computed
NAMED = 5  # of the images that cannot be read


# --- images ---


@dataclass(frozen=True)
class Squares:
    """A batch of what the network sees."""

    numbers: list[int]  # whose squares they are
    squares: Tensor  # uint8 (n, 3, size, size)
    unreadable: list[str]  # a line for each of the batch that cannot be read


def central_square(picture: Tensor, size: int) -> Tensor:
    """As in S4L's evaluation: the short side resized to size · 256 / 224, and of that the central square.

    uint8 (3, h, w) -> (3, size, size)
    """
    # A strip of 1 × 2000 pixels would be 400 MB once resized; its ends are cut off in any case.
    most = 4 * min(picture.shape[1:])
    picture = vision.center_crop(picture, [min(side, most) for side in picture.shape[1:]])
    resized = vision.resize(picture, [round(size * 256 / 224)], antialias=True)
    square: Tensor = vision.center_crop(resized, [size, size])
    return square.contiguous()


def test_squares(images: LabelledImages, size: int, most: int) -> tuple[Tensor, Tensor, list[str]]:
    """At most so many images, evenly over all: uint8 (n, 3, size, size), their labels (n,), and a line for each that
    cannot be read and is left out."""
    count = min(most, len(images))
    chosen = [number * len(images) // count for number in range(count)]
    squares, labels, unreadable = zip(*_read(images, chosen, size), strict=True)
    lines = [line for part in unreadable for line in part]
    _check_some_readable(images, count, lines)
    return torch.cat(squares), torch.cat(labels), lines


def read_squares(files: Iterable[tuple[int, Path]], size: int) -> Iterator[Squares]:
    """The central squares of numbered files, in batches and in their order.

    Threads: reading and resizing images leaves Python to itself.
    """
    threads = ThreadPoolExecutor(available_cores())
    try:
        waiting: deque[list[tuple[int, Future[Tensor | str]]]] = deque()
        rest = iter(files)
        while part := list(itertools.islice(rest, BATCH)):
            waiting.append([(number, threads.submit(_read_one, path, size)) for number, path in part])
            if len(waiting) > AHEAD:
                yield _gathered(waiting.popleft(), size)
        while waiting:
            yield _gathered(waiting.popleft(), size)
    finally:
        threads.shutdown(cancel_futures=True)


def _read_one(path: Path, size: int) -> Tensor | str:
    """The square of an image file, or why there is none."""
    try:
        return central_square(read_picture(path), size)
    except (OSError, ValueError) as error:
        return f"{str(path)!r}: {first_line(error)}"


def _gathered(part: list[tuple[int, Future[Tensor | str]]], size: int) -> Squares:
    found = [(number, future.result()) for number, future in part]
    numbers = [number for number, one in found if isinstance(one, Tensor)]
    squares = [one for _, one in found if isinstance(one, Tensor)]
    stacked = torch.stack(squares) if squares else torch.empty(0, 3, size, size, dtype=torch.uint8)
    return Squares(numbers, stacked, [one for _, one in found if isinstance(one, str)])


def _read(images: LabelledImages, chosen: Sequence[int], size: int) -> Iterator[tuple[Tensor, Tensor, list[str]]]:
    """Batches of squares (n, 3, size, size), their labels (n,), and a line for each image that cannot be read."""
    for batch in read_squares(((image, images.path(image)) for image in chosen), size):
        labels = [int(images.labels[image]) for image in batch.numbers]
        yield batch.squares, torch.tensor(labels, dtype=torch.int64), batch.unreadable


def _check_some_readable(images: LabelledImages, count: int, unreadable: Sequence[str]) -> None:
    if len(unreadable) == count:
        raise UserError(f"none of {count:,} test images of {images.root} can be read (the first: {unreadable[0]})")


def _open(subject: Classified) -> tuple[ImageClassifier, LabelledImages]:
    """The classifier, and the test images with labels in the order of its classes: of those without names, in the
    sorted order of the folders."""
    if has_names(subject.encoder):
        classifier = open_classifier(subject.encoder, subject.weights, subject.name)
        assert classifier.classes is not None
        return classifier, _find(subject.images, classifier.classes)
    images = _find(subject.images, find_images(subject.images).classes)
    told = Told(len(images.classes), subject.images)
    return open_classifier(subject.encoder, subject.weights, subject.name, told), images


def _find(source: Path, classes: Sequence[str]) -> LabelledImages:
    """The test images, beside train/ or all there are, with labels in the order of `classes`."""
    images = find_test_images(source, source, classes)
    assert images is not None  # those that were named are found, or it is an error
    return images


# --- accuracy ---


def top1_top5(
    encoder: nn.Module,
    classifier: Classifier,
    images: Tensor,
    labels: Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device | str,
) -> tuple[float, float]:
    """The shares of the images, uint8 (n, 3, size, size), whose label is the first guess, and among the first five.

    The encoder, on the device, is in evaluation mode meanwhile, and unchanged afterwards.
    """
    network = nn.Sequential(encoder, classifier.layer().to(device))
    first, five = 0, 0
    for part, wanted in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        right = top_k(encode(network, [part], mean, std, device), wanted)
        first, five = first + right[0], five + right[1]
    return first / len(images), five / len(images)


def evaluate_classifier(subject: Classified, console: Console, device: str = "auto") -> Result:
    """Tests a classifier on labelled images, and writes the result."""
    place = choose_device(device)
    classifier, images = _open(subject)
    model, network = classifier.model, classifier.network
    check_name(model.name, model.checksum, subject.out)
    weights = checksum(network, model.mean, model.std)
    _check_results(model.name, weights, subject, images)
    notes = (*images.notes, *_trained_on(subject, images))
    for note in notes:
        console.print(note, style="yellow", soft_wrap=True)
    began = time.monotonic()
    first, five, unreadable = _test(network.to(place), model, images, place, console)
    count = len(images) - len(unreadable)
    result = Result(
        encoder=model.name,
        benchmark="classifier",
        protocol="full",
        task=_title(subject.images),
        title=_title(subject.images),
        group="own",
        classes=len(images.classes),
        score=Score((first / count,)),
        top5=five / count if len(images.classes) > 5 else None,  # else it is always right
        split="own split",
        images={"test": count},
        unreadable=len(unreadable),
        notes=(*notes, *_named(unreadable)),
        settings={"size": model.size, "classifier_checksum": weights},
        encoder_from=model.source,
        encoder_checksum=model.checksum,
        data_checksum=images.fingerprint(),
        seconds=round(time.monotonic() - began, 2),
        versions=versions(),
    )
    try:
        write_result(subject.out, result)
    except StorageError as error:
        raise UserError(f"results cannot be written: {error}") from None
    for line in _named(unreadable):
        console.print(f"left out: {line}", style="yellow", soft_wrap=True)
    console.print(in_one_line(result), soft_wrap=True)
    return result


def _test(
    network: nn.Module, model: Model, images: LabelledImages, device: torch.device, console: Console
) -> tuple[int, int, list[str]]:
    """How many labels are the first guess, how many among the first five, and the images that cannot be read."""
    done, first, five = 0, 0, 0
    unreadable: list[str] = []
    with ProgressLine("classifier", len(images), console) as progress:
        for squares, labels, lines in _read(images, range(len(images)), model.size):
            if len(squares):
                right = top_k(encode(network, [squares], model.mean, model.std, device), labels)
                first, five = first + right[0], five + right[1]
            unreadable += lines
            done += len(squares) + len(lines)
            progress.show(done, f"{done:,} of {len(images):,} images")
    _check_some_readable(images, len(images), unreadable)
    return first, five, unreadable


def in_one_line(result: Result) -> str:
    """run: top-1 61.2 %, top-5 83.9 % of 50,000 images"""
    top5 = f", top-5 {100 * result.top5 + 1e-9:.1f} %" if result.top5 is not None else ""
    left_out = f"; {result.unreadable:,} could not be read" if result.unreadable else ""
    top1 = f"top-1 {100 * result.score.median + 1e-9:.1f} %"
    return f"{result.encoder}: {top1}{top5} of {result.images['test']:,} images{left_out}"


def _check_results(name: str, weights: str, subject: Classified, images: LabelledImages) -> None:
    """A result on other images, or of another classifier, of the same name is not to be lost."""
    for result in read_results(subject.out)[0] if subject.out.is_dir() else ():
        if (result.encoder, result.benchmark, result.task) != (name, "classifier", _title(subject.images)):
            continue
        if result.data_checksum != images.fingerprint():
            raise UserError(
                f"{subject.out} has a result of {name} on other images that are called {result.task} too; "
                "choose another --out"
            )
        if result.settings.get("classifier_checksum", weights) != weights:
            raise UserError(
                f"{subject.out} has a result of another classifier that is called {name} too: "
                "give --name or another --out"
            )


def _trained_on(subject: Classified, images: LabelledImages) -> list[str]:
    """Says so where a run is tested on the very images it was trained on."""
    run = Path(subject.encoder)
    try:
        about = json.loads(read_file((run if run.is_dir() else run.parent) / "run.json"))
        same = about["images"] == str(images.source.resolve())
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [f"{images.source} is what {run} was trained on: this is no test accuracy"] if same else []


def _named(unreadable: Sequence[str]) -> tuple[str, ...]:
    """The first few, and how many more."""
    more = len(unreadable) - NAMED
    return (*unreadable[:NAMED], *([f"{more:,} more that cannot be read"] if more > 0 else []))


def _title(source: Path) -> str:
    """The name of a test set: that of its folder, or of the one that val/ or a list is in."""
    path = source.resolve()
    if path.is_file():
        return f"{path.parent.name}-{path.stem}"
    return path.parent.name if path.name in ("val", "validation", "test") else path.name
