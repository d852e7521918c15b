"""Classifiers to be evaluated: that of a run which was trained with labels, or the one a timm model has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import timm
from torch import Tensor, nn

from vivi import recipes
from vivi.evaluate.encoders import VTAB_SIZE, Model, load_model, load_weights, read_weights
from vivi.model.architecture import architecture_of
from vivi.model.files import Classifier, read_classifier
from vivi.runtime.errors import UserError
from vivi.runtime.storage import read_file


@dataclass(frozen=True)
class ImageClassifier:
    """An encoder as the other benchmarks know it, and the network from its images to logits."""

    model: Model
    network: nn.Module  # normalised images (n, 3, size, size) -> logits (n, outputs); on the CPU, eval mode
    outputs: int
    classes: tuple[str, ...] | None  # names of the outputs; None: they are known by number, as timm's are


@dataclass(frozen=True)
class ExpectedClasses:
    """How many classes a classifier must have, and which images say so."""

    classes: int
    by: Path


def has_names(source: str) -> bool:
    """Whether the classes of this --encoder have names; raises where it has no classifier at all."""
    kind = source.partition(":")[0]
    if kind in ("untrained", "ms", "mt-ssl", "ti"):
        raise UserError(
            f"{source} has no classifier: give --encoder a run that was trained with labels, or timm:NAME"
        )
    return kind != "timm"


def open_classifier(
    source: str, weights: Path | None = None, name: str = "", told: ExpectedClasses | None = None
) -> ImageClassifier:
    """The classifier that --encoder and --weights name. Where nobody has told how many classes a timm model has, its
    weights do."""
    if not has_names(source):
        return _timm(source, weights, name, told)
    model = load_model(source, weights, name=name)
    run = Path(source)
    classifier = _of_run(run if run.is_dir() else run.parent, model)
    network = nn.Sequential(model.backbone, classifier.layer())
    return ImageClassifier(model, network.eval(), len(classifier.classes), classifier.classes)


def _of_run(run: Path, model: Model) -> Classifier:
    """The classifier that was trained with the encoder of a run."""
    classifier = read_classifier(run)
    features = classifier.weight.shape[1]
    if features != model.features:
        raise UserError(
            f"the classifier of {run} is for {features} features, its encoder has {model.features}: "
            "take both from the same run"
        )
    step, other = (json.loads(read_file(run / f"{part}.json")).get("step") for part in ("encoder", "classifier"))
    if step != other:
        raise UserError(
            f"in {run} the encoder is of step {step}, the classifier of step {other}: "
            "if it is training, try again; if it was stopped, go on with it"
        )
    return classifier


def _timm(source: str, weights: Path | None, name: str, told: ExpectedClasses | None) -> ImageClassifier:
    """A timm model with the classifier it has; its classes are numbers."""
    kind = source.partition(":")[2]
    architecture = architecture_of(recipes.Encoder(kind), VTAB_SIZE)  # says so where timm has no such model
    config = timm.models.get_pretrained_cfg(architecture.name)
    size = int(config.input_size[-1]) if config else VTAB_SIZE
    model = load_model(source, weights, size, name)
    if weights is None:
        network: nn.Module = timm.create_model(kind, pretrained=True)
        outputs = int(getattr(network, "num_classes", 0))
        if told and outputs != told.classes:
            raise UserError(
                f"{source} knows {outputs:,} classes, {told.by} has {told.classes:,}: "
                "give the images of all classes that it was trained on"
            )
        if not outputs:
            raise UserError(f"{source} has no classifier: take a timm model that was trained with labels")
    else:
        state = read_weights(weights)
        outputs = told.classes if told else _outputs(kind, state, weights)
        network = timm.create_model(kind, num_classes=outputs)
        what = f"{kind} with {outputs:,} classes" + (f", as many as {told.by} has" if told else "")
        load_weights(network, state, weights, what)
    return ImageClassifier(model, network.eval(), outputs, None)


def _outputs(kind: str, state: Mapping[str, Tensor], where: Path) -> int:
    """How many classes weights are for: as many as their last layer has rows."""
    config = timm.models.get_pretrained_cfg(kind)
    layers = config.classifier if config else None
    last = layers if isinstance(layers, str) else next(iter(layers or ()), "fc")
    names = [name for name in state if name == f"{last}.weight" or name.endswith(f".{last}.weight")]
    if not names:
        raise UserError(f"{where} has no {last}.weight, the classifier of {kind}: it holds an encoder alone")
    return int(state[names[0]].shape[0])
