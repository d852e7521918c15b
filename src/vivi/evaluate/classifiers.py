"""Classifiers to be evaluated: that of a run which was trained with labels, or the one a timm model has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import timm
from torch import Tensor, nn

from vivi import recipes
from vivi.data.images import LabelledImages
from vivi.evaluate.encoders import VTAB_SIZE, Model, load_model, load_weights, read_weights
from vivi.model.architecture import architecture_of
from vivi.model.files import read_classifier
from vivi.runtime.errors import UserError
from vivi.runtime.storage import read_file


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
        raise UserError(
            f"{source} has no classifier: give --encoder a run that was trained with labels, or timm:NAME"
        )
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
    step, other = (json.loads(read_file(run / f"{part}.json")).get("step") for part in ("encoder", "classifier"))
    if step != other:
        raise UserError(
            f"in {run} the encoder is of step {step}, the classifier of step {other}: "
            "if it is training, try again; if it was stopped, go on with it"
        )
    network = nn.Sequential(model.backbone, classifier.layer())
    return ImageClassifier(model, network.eval(), len(classifier.classes), classifier.classes)


def _timm(source: str, weights: Path | None, name: str, images: LabelledImages | None) -> ImageClassifier:
    kind = source.partition(":")[2]
    architecture = architecture_of(recipes.Encoder(kind), VTAB_SIZE)  # says so where timm has no such model
    config = timm.models.get_pretrained_cfg(architecture.name)
    model = load_model(source, weights, int(config.input_size[-1]) if config else VTAB_SIZE, name)
    known = len(images.classes) if images else 0
    if weights is not None:
        state = read_weights(weights)
        outputs = known or _outputs(kind, state, weights)
        network: nn.Module = timm.create_model(kind, num_classes=outputs)
        what = f"{kind} with {outputs:,} classes" + (f", as many as {images.source} has" if images else "")
        load_weights(network, state, weights, what)
    else:
        network = timm.create_model(kind, pretrained=True)
        outputs = int(getattr(network, "num_classes", 0))
        if images and outputs != known:
            raise UserError(
                f"{source} knows {outputs:,} classes, {images.source} has {known:,}: "
                "give the images of all classes that it was trained on"
            )
        if not outputs:
            raise UserError(f"{source} has no classifier: take a timm model that was trained with labels")
    return ImageClassifier(model, network.eval(), outputs, None)


def _outputs(kind: str, state: Mapping[str, Tensor], where: Path) -> int:
    """How many classes weights are for: as many as their last layer has rows."""
    config = timm.models.get_pretrained_cfg(kind)
    layers = config.classifier if config else None
    last = layers if isinstance(layers, str) else next(iter(layers or ()), "fc")
    for name, tensor in state.items():
        if f".{name}".endswith(f".{last}.weight"):
            return len(tensor)
    raise UserError(f"{where} has no {last}.weight, the classifier of {kind}: it holds an encoder alone")
