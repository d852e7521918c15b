"""The linear classifier on the encoder's representations: its files, and how often it is right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vivi.errors import UserError, first_line
from vivi.model.files import check_facts, check_values, parse_tensors, write_facts, write_tensors
from vivi.storage import WEIGHTS, read_file


@dataclass(frozen=True)
class Classifier:
    """Logits are `weight` times a representation, plus `bias`."""

    weight: Tensor  # (classes, features)
    bias: Tensor  # (classes,)
    classes: tuple[str, ...]  # their names, in the order of the logits

    def layer(self) -> nn.Linear:
        """As a module: representations (n, features) -> logits (n, classes)."""
        classes, features = self.weight.shape
        # Without initial weights: these would take random numbers from training.
        layer: nn.Linear = nn.utils.skip_init(nn.Linear, features, classes, device=self.weight.device)
        with torch.no_grad():
            layer.weight.copy_(self.weight)
            layer.bias.copy_(self.bias)
        return layer


def write_classifier(run: Path, classifier: Classifier, step: int) -> None:
    """classifier.safetensors, with `weight` and `bias`, and classifier.json, which names the classes."""
    tensors = {"weight": classifier.weight, "bias": classifier.bias}
    about = {"classes": classifier.classes, "features": classifier.weight.shape[1], "step": step}
    write_tensors(run / "classifier.safetensors", {name: tensor.float() for name, tensor in tensors.items()})
    write_facts(run / "classifier.json", about, indent=1)


def read_classifier(run: Path) -> Classifier:
    """What write_classifier wrote."""
    weights, about = run / "classifier.safetensors", run / "classifier.json"
    try:
        content = read_file(weights, WEIGHTS)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{run} has no classifier: it was trained without labels, or has no checkpoint yet; "
            "vivi evaluate knn, linear or vtab measure an encoder alone"
        ) from None
    except OSError as error:
        raise UserError(f"the classifier {weights} cannot be read ({error.strerror})") from None
    try:
        facts = json.loads(read_file(about))
        classes, features = _read_about(facts)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{about} is missing or damaged ({first_line(error)})") from None
    check_facts(facts, about)
    state = parse_tensors(content, weights)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if shapes != {"weight": (len(classes), features), "bias": (len(classes),)}:
        raise UserError(
            f"{weights} does not fit {about.name}, which has {len(classes)} classes and {features} features: "
            "take both files from the same run"
        )
    check_values(state, {name: torch.empty(0) for name in state}, weights)
    return Classifier(state["weight"].float(), state["bias"].float(), classes)


def _read_about(about: Any) -> tuple[tuple[str, ...], int]:
    """The classes, and the length of a representation."""
    classes, features = about["classes"], about["features"]
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ValueError("classes must be names")
    "".join(classes).encode("utf-8", "surrogateescape")  # names of folders need not be text, but are bytes
    if not classes or len(set(classes)) < len(classes):
        raise ValueError("there must be classes, each of them once")
    if type(features) is not int or features < 1:
        raise ValueError("features must be a count")
    return tuple(classes), features


def top_k(logits: Tensor, labels: Tensor, ks: Sequence[int] = (1, 5)) -> tuple[int, ...]:
    """For each k: of how many images (n, classes) the label is among the first k; all, if there are no more than k
    classes.

    A class that is as likely as the label comes before it, and so does one whose logit is not a number: a constant
    or broken output is right about nothing by luck.
    """
    own = logits.gather(1, labels.to(logits.device)[:, None])  # (n, 1)
    place = (~(logits < own)).sum(dim=1)  # the label's own, 1 at best
    return tuple(int((place <= k).sum()) for k in ks)
