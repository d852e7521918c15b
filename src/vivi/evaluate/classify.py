"""vivi evaluate classifier: how often a classifier's first guess, or one of its first five, is an image's class."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from vivi.data.images import LabelledImages, find_images, find_test_images
from vivi.data.squares import check_some_readable, labelled_squares
from vivi.evaluate.classifiers import ExpectedClasses, ImageClassifier, has_names, open_classifier
from vivi.evaluate.encoders import Model, checksum
from vivi.evaluate.results import Result, Score, read_results, versions, write_result
from vivi.evaluate.settings import Classified
from vivi.evaluate.subject import check_name
from vivi.model.features import encode, top_k
from vivi.runtime.distributed import choose_device
from vivi.runtime.errors import UserError
from vivi.runtime.progress import ProgressLine
from vivi.runtime.storage import StorageError, read_file

NAMED = 5  # of the images that cannot be read


def _open(subject: Classified) -> tuple[ImageClassifier, LabelledImages]:
    """The classifier, and the test images with labels in the order of its classes: of those without names, in the
    sorted order of the folders."""
    if has_names(subject.encoder):
        classifier = open_classifier(subject.encoder, subject.weights, subject.name)
        assert classifier.classes is not None
        return classifier, _find(subject.images, classifier.classes)
    images = _find(subject.images, find_images(subject.images).classes)
    told = ExpectedClasses(len(images.classes), subject.images)
    return open_classifier(subject.encoder, subject.weights, subject.name, told), images


def _find(source: Path, classes: Sequence[str]) -> LabelledImages:
    """The test images, beside train/ or all there are, with labels in the order of `classes`."""
    images = find_test_images(source, source, classes)
    assert images is not None  # those that were named are found, or it is an error
    return images


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
        for squares, labels, lines in labelled_squares(images, range(len(images)), model.size):
            if len(squares):
                right = top_k(encode(network, [squares], model.mean, model.std, device), labels)
                first, five = first + right[0], five + right[1]
            unreadable += lines
            done += len(squares) + len(lines)
            progress.show(done, f"{done:,} of {len(images):,} images")
    check_some_readable(images, len(images), unreadable)
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
