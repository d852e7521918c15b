"""Classifiers: that of a run which was trained with labels, or that of a timm model; and vivi evaluate classifier:
how often their first guess, or one of the first five, is an image's class."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from rich.console import Console
from torch import Tensor, nn

from vivi.data.images import LabelledImages, find_images, find_test_images, set_name
from vivi.data.squares import check_some_readable, labelled_squares
from vivi.evaluate.encoders import VTAB_SIZE, Model, checksum, load_model, load_weights, read_weights
from vivi.evaluate.metadata import NAMED
from vivi.evaluate.results import Result, Score, read_results, versions, write_result
from vivi.evaluate.settings import Classified
from vivi.evaluate.subject import check_name
from vivi.model.architecture import timm_config
from vivi.model.features import encode, top_k
from vivi.model.files import read_classifier
from vivi.model.pretrained import create_pretrained
from vivi.runtime.console import warn
from vivi.runtime.distributed import choose_device
from vivi.runtime.errors import UserError
from vivi.runtime.progress import ProgressLine
from vivi.runtime.storage import StorageError, read_file


@dataclass(frozen=True)
class ImageClassifier:
    """An encoder as the other benchmarks know it, and the network from its images to logits."""

    model: Model
    network: nn.Module  # normalised images (n, 3, size, size) -> logits (n, outputs); on the CPU, eval mode
    outputs: int
    classes: tuple[str, ...] | None  # names of the outputs; None: they are known by number, as timm's are


def has_names(source: str) -> bool:
    """Whether the classes of this --encoder have names; raises where it has no classifier at all."""
    kind = source.partition(":")[0]
    if kind in ("untrained", "ms", "mt-ssl", "ti"):
        raise UserError(f"{source} has no classifier: give a run that was trained with labels, or timm:NAME")
    return kind != "timm"


def open_classifier(
    source: str, weights: Path | None = None, name: str = "", images: LabelledImages | None = None
) -> ImageClassifier:
    """The classifier that --encoder and --weights name. A timm model must have as many classes as the images, where
    there are any, or else as its weights."""
    if not has_names(source):
        return _timm(source, weights, name, images)
    model = load_model(source, weights, name=name)
    run = Path(source) if Path(source).is_dir() else Path(source).parent
    classifier = read_classifier(run)
    features = classifier.weight.shape[1]
    if features != model.features:
        raise UserError(
            f"the classifier of {run} is for {features} features, its encoder has {model.features}: "
            "take both from the same run"
        )
    steps = [json.loads(read_file(run / f"{part}.json")).get("step") for part in ("encoder", "classifier")]
    if steps[0] != steps[1]:
        raise UserError(
            f"in {run} the encoder is of step {steps[0]}, the classifier of step {steps[1]}: "
            "if it is training, try again; if it was stopped, go on with it"
        )
    network = nn.Sequential(model.backbone, classifier.layer())
    return ImageClassifier(model, network.eval(), len(classifier.classes), classifier.classes)


def _timm(source: str, weights: Path | None, name: str, images: LabelledImages | None) -> ImageClassifier:
    timm_name = source.partition(":")[2]
    config = timm_config(timm_name)
    model = load_model(source, weights, int(config.input_size[-1]) if config else VTAB_SIZE, name)
    classes = len(images.classes) if images else 0
    if weights is not None:
        state = read_weights(weights)
        outputs = classes or _outputs(timm_name, config, state, weights)
        network: nn.Module = timm.create_model(timm_name, num_classes=outputs)
        what = f"{timm_name} with {outputs:,} classes" + (f", as many as {images.source} has" if images else "")
        load_weights(network, state, weights, what)
    else:
        network = create_pretrained(timm_name)
        outputs = int(getattr(network, "num_classes", 0))
        if images and outputs != classes:
            raise UserError(
                f"{source} knows {outputs:,} classes, {images.source} has {classes:,}: "
                "give the images of all classes that it was trained on"
            )
        if not outputs:
            raise UserError(f"{source} has no classifier: take a timm model that was trained with labels")
    return ImageClassifier(model, network.eval(), outputs, None)


def _outputs(timm_name: str, config: Any, state: Mapping[str, Tensor], where: Path) -> int:
    """How many classes weights are for: as many as their last layer has rows."""
    layers = config.classifier if config else None
    last = layers if isinstance(layers, str) else next(iter(layers or ()), "fc")
    for name, tensor in state.items():
        if f".{name}".endswith(f".{last}.weight"):
            return len(tensor)
    raise UserError(f"{where} has no {last}.weight, the classifier of {timm_name}: it holds an encoder alone")


# --- vivi evaluate classifier ---


def evaluate_classifier(subject: Classified, console: Console, device: str = "auto") -> Result:
    """Tests a classifier on labelled images, and writes the result."""
    place = choose_device(device)
    # The labels are in the order of its classes: of those without names, in the sorted order of the folders.
    own = open_classifier(subject.encoder, subject.weights, subject.name) if has_names(subject.encoder) else None
    classes = own.classes if own else find_images(subject.data).classes
    images = find_test_images(subject.data, subject.data, classes or ())
    assert images is not None  # those that were named are found, or it is an error
    classifier = own or open_classifier(subject.encoder, subject.weights, subject.name, images)
    model = classifier.model
    check_name(model.name, model.checksum, subject.out)
    weights = checksum(classifier.network, model.mean, model.std)
    name = set_name(subject.data)
    _check_results(subject.out, model.name, weights, name, images)
    notes = (*images.notes, *_trained_on(subject, images))
    for note in notes:
        warn(console, note)
    began = time.monotonic()
    right, right_of_five, unreadable = _test(classifier, images, place, console)
    count, more = len(images) - len(unreadable), len(unreadable) - NAMED
    left_out = unreadable[:NAMED] + ([f"{more:,} more that cannot be read"] if more > 0 else [])
    result = Result(
        encoder=model.name,
        benchmark="classifier",
        protocol="full",
        task=name,
        title=name,
        group="own",
        classes=len(images.classes),
        score=Score((right / count,)),
        top5=right_of_five / count if len(images.classes) > 5 else None,  # else it is always right
        split="own split",
        images={"test": count},
        unreadable=len(unreadable),
        notes=(*notes, *left_out),
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
    for line in left_out:
        warn(console, f"left out: {line}")
    tops = {"top-1": result.score.median, "top-5": result.top5}
    shares = ", ".join(f"{top} {100 * share + 1e-9:.1f} %" for top, share in tops.items() if share is not None)
    lost = f"; {len(unreadable):,} could not be read" if unreadable else ""
    console.print(f"{model.name}: {shares} of {count:,} images{lost}", soft_wrap=True)
    return result


def _test(
    classifier: ImageClassifier, images: LabelledImages, device: torch.device, console: Console
) -> tuple[int, int, list[str]]:
    """How many labels are the first guess, how many among the first five, and the images that cannot be read."""
    model, network = classifier.model, classifier.network.to(device)
    done, right, right_of_five = 0, 0, 0
    unreadable: list[str] = []
    with ProgressLine("classifier", len(images), console) as progress:
        for squares, labels, lines in labelled_squares(images, range(len(images)), model.size):
            if len(squares):
                top1, top5 = top_k(encode(network, [squares], model.mean, model.std, device), labels)
                right, right_of_five = right + top1, right_of_five + top5
            unreadable += lines
            done += len(squares) + len(lines)
            progress.show(done, f"{done:,} of {len(images):,} images")
    check_some_readable(images, len(images), unreadable)
    return right, right_of_five, unreadable


def _check_results(out: Path, name: str, weights: str, title: str, images: LabelledImages) -> None:
    """Raises where a result of the same name, of another classifier or on other images, would be overwritten."""
    for result in read_results(out)[0] if out.is_dir() else ():
        measured = result.data_checksum, result.settings.get("classifier_checksum", weights)
        same = (result.encoder, result.benchmark, result.task) == (name, "classifier", title)
        if same and measured != (images.fingerprint(), weights):
            raise UserError(
                f"{out} has a result of another classifier that is called {name} too, or on other images that are "
                f"called {title} too: give --name or another --out"
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
