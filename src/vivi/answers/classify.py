"""vivi classify fit: labelled images → a classifier, and a page that says how good it is.

    folder per class ──split──▶ train, validation, test
    frozen features: ridge regression, its strength and a temperature chosen on validation images
    --finetune: the whole network, learning rate and schedule chosen on validation images

The folder that is written is a run: encoder.safetensors, encoder.json, classifier.safetensors, classifier.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from vivi.answers.fit_page import write_fit_page
from vivi.data.images import LabelledImages
from vivi.data.splits import LabelledSplit, find_split
from vivi.evaluate.encoders import Model, load_model
from vivi.evaluate.features import Pictures, embed
from vivi.evaluate.finetune import Tuner, Tuning
from vivi.evaluate.probes import STRENGTHS, accuracy, linear_probe
from vivi.evaluate.results import Setting, wilson
from vivi.evaluate.settings import QUICK_BATCH, QUICK_SCHEDULES
from vivi.evaluate.tasks.examples import Examples
from vivi.model.encoder import Encoder
from vivi.model.files import Classifier, write_classifier, write_encoder
from vivi.runtime.console import warn
from vivi.runtime.distributed import choose_device
from vivi.runtime.errors import UserError
from vivi.runtime.progress import ProgressLine
from vivi.runtime.storage import StorageError, locked

_TEMPERATURES = [10 ** (step / 20) for step in range(-20, 61)]


@dataclass(frozen=True)
class Fitted:
    """A classifier that was fitted, and how it did on the test images."""

    folder: Path
    classes: tuple[str, ...]
    labels: Tensor  # (n,): of the test images
    probabilities: Tensor  # (n, classes)
    how: str  # with which settings it was fitted

    @property
    def right(self) -> int:
        return int((self.probabilities.argmax(dim=1) == self.labels).sum())

    @property
    def accuracy(self) -> float:
        return self.right / len(self.labels)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true accuracy lies in 95 % of the cases."""
        return wilson(self.accuracy, len(self.labels))


def fit_classifier(
    images: Path | str,
    encoder: str,
    out: Path | str,
    *,
    finetune: bool = False,
    seed: int = 0,
    weights: Path | None = None,
    size: int = 0,
    device: str = "auto",
    console: Console | None = None,
) -> Fitted:
    """Fits a classifier to a folder per class, or a list of images and classes, and writes it into the folder `out`,
    with a page about it. A fifth of each class is to test on, unless the folder has train/ and test/."""
    out, console = Path(out), console or Console(quiet=True)
    if encoder.partition(":")[0] in ("ms", "mt-ssl", "ti"):
        raise UserError(f"a classifier on {encoder} cannot be kept: give a run or timm:NAME")
    split = find_split(Path(images), seed, console)
    console.print(split.summary(), soft_wrap=True)
    for note in split.notes:
        warn(console, note)
    model = load_model(encoder, weights, size)
    place = choose_device(device)
    with locked(out, "vivi classify"):
        fit = _fit_finetuned if finetune else _fit_linear
        classifier, how = fit(split, model, place, seed, console)
        features = _features(model, split.test, place)
        probabilities = F.softmax(classifier.layer()(features), dim=1).detach()
        fitted = Fitted(out, split.classes, torch.from_numpy(split.test.labels), probabilities, how)
        try:
            write_encoder(out, Encoder(model.architecture, model.backbone.cpu(), 0.1), model.name, 0)
            write_classifier(out, classifier, 0)
            write_fit_page(out, fitted, split, model.name)
        except StorageError as error:
            raise UserError(f"the classifier cannot be written: {error}; choose another --out") from None
    return fitted


def _features(model: Model, images: LabelledImages, device: torch.device) -> Tensor:
    return embed(model.backbone.to(device), images.paths(), model.size, model.mean, model.std, device)


# --- on frozen features ---


def _fit_linear(
    split: LabelledSplit, model: Model, device: torch.device, seed: int, console: Console
) -> tuple[Classifier, str]:
    """Ridge regression, as in vivi evaluate linear, then a temperature that makes probabilities of its outputs."""
    classes = len(split.classes)
    train, train_labels = _features(model, split.train, device), torch.from_numpy(split.train.labels)
    validation, labels, everything, all_labels = train, train_labels, train, train_labels
    if len(split.validation):
        validation, labels = _features(model, split.validation, device), torch.from_numpy(split.validation.labels)
        everything, all_labels = torch.cat([train, validation]), torch.cat([train_labels, labels])
    trials = [logits for (logits,) in linear_probe(train, train_labels, [validation], classes)]
    scores = [accuracy(logits, labels) for logits in trials]
    best = scores.index(max(scores))
    temperature = best_temperature(trials[best], labels)
    # The output is linear in the features: its values at 0 and at the unit vectors are bias and weights.
    corners = torch.cat([torch.zeros(1, model.features), torch.eye(model.features)])
    [[outputs]] = linear_probe(everything, all_labels, [corners], classes, [STRENGTHS[best]])
    bias, weight = temperature * outputs[0], temperature * (outputs[1:] - outputs[0]).T
    how = f"ridge regression on frozen features, strength {STRENGTHS[best]:g} and temperature {temperature:.3g}"
    return Classifier(weight.float(), bias.float(), split.classes), f"{how}, chosen on {len(labels):,} images"


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """By what to multiply logits (n, classes) so that their softmax is most likely to give the labels."""
    return min(_TEMPERATURES, key=lambda factor: float(F.cross_entropy(factor * logits.double(), labels)))


# --- the whole network ---


def _fit_finetuned(
    split: LabelledSplit, model: Model, device: torch.device, seed: int, console: Console
) -> tuple[Classifier, str]:
    """VTAB's short sweep: two learning rates and two schedules, the best on validation images; then on all of them.
    The model's backbone is the fine-tuned one afterwards."""
    tuner, classes = Tuner(model, device), len(split.classes)

    def pictures(*parts: LabelledImages) -> Pictures:
        paths = [path for part in parts for path in part.paths()]
        labels = torch.cat([torch.from_numpy(part.labels) for part in parts])
        return Pictures(Examples(paths, labels), model.size, True, device)

    train, everything = pictures(split.train), pictures(split.train, split.validation)
    validation = pictures(split.validation) if len(split.validation) else train
    settings = [Setting(lr, steps) for lr in model.learning_rates for steps in QUICK_SCHEDULES]
    scores = []
    with ProgressLine("fine-tune", len(settings) + 1, console) as progress:
        for done, setting in enumerate(settings, start=1):
            scores.append(tuner.accuracy(train, validation, classes, Tuning(setting, seed, QUICK_BATCH)))
            progress.show(done, f"learning rate {setting.lr:g}, {setting.steps:,} steps: {100 * scores[-1]:.1f} %")
        best = settings[scores.index(max(scores))]
        head = tuner.tune(everything, classes, Tuning(best, seed, QUICK_BATCH))
        progress.show(len(settings) + 1, f"learning rate {best.lr:g}, {best.steps:,} steps, on all images")
    model.backbone.eval()
    how = f"fine-tuned with learning rate {best.lr:g} for {best.steps:,} steps, chosen on {len(validation):,} images"
    return Classifier(head.weight.detach().cpu(), head.bias.detach().cpu(), split.classes), how
