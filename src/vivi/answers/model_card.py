"""The model card of an exported encoder, README.md: how to load it, and what is known of its data, training and
accuracy. Its code runs in the exported folder."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc

from vivi.answers.settings import TEST_VECTOR, ExportSettings
from vivi.data.index import open_index
from vivi.evaluate.encoders import Model
from vivi.evaluate.results import AnyResult, DetectionResult, RobustResult, read_all
from vivi.prepare.corpus import Corpus
from vivi.recipes.files import flatten, read_recipe_json
from vivi.report.table import markdown_escaped as escaped
from vivi.runtime.errors import UserError
from vivi.runtime.progress import duration
from vivi.runtime.storage import read_json
from vivi.train.metrics import TIMING, read_metrics

# What decides most about an encoder; what else was overridden is listed after these.
FIELDS = (
    *("encoder.name", "encoder.width", "encoder.norm", "encoder.start", "augment.size"),
    *("loss.frame", "loss.video", "loss.video_weight", "loss.supervised_weight"),
    *("batch.videos", "batch.shots", "batch.frames", "images.count"),
    *("steps", "optimiser.lr", "optimiser.weight_decay"),
)


class _RunFile(msgspec.Struct):
    """What of run.json the card says."""

    corpus: str = ""
    corpus_fingerprint: str = ""
    images: str = ""
    overridden: dict[str, dict[str, Any]] = {}


class _EncoderFile(msgspec.Struct):
    """What of encoder.json the card says."""

    recipe: str = "of unknown name"
    step: int = 0


@dataclass(frozen=True)
class Card:
    """The text, and a line for each thing that is missing from it."""

    text: str
    gaps: tuple[str, ...]


def model_card(model: Model, settings: ExportSettings, tolerance: float) -> Card:
    """The card of a model whose exported features may differ from torch's by `tolerance`."""
    gaps: list[str] = []
    sections = [
        _head(settings.license) if settings.to == "hf" else "",
        f"# {escaped(model.name)}",
        _what_it_is(model),
        "## Load it",
        _loading(model, settings),
        "## Check it",
        _checking(settings, tolerance),
    ]
    run = None if ":" in model.source else Path(model.source)
    if run is not None:
        run = run if run.is_dir() else run.parent
        path = run / "run.json"
        about = read_json(path, _RunFile, "copy it again from its run") if path.exists() else _RunFile()
        sections += ["## Data", _data(about, gaps), "## Training", _training(run, about)]
    else:
        sections += [
            "## Data and training",
            f"Its weights are those of {escaped(model.source)}; vivi only exported it.",
        ]
    if settings.results is not None:
        sections += ["## Results", _results(settings.results, model, gaps)]
    sections += ["## License", _license(settings.license, gaps)]
    return Card("\n\n".join(filter(None, sections)) + "\n", tuple(gaps))


# --- how to use it ---

_TIMM = """\
import timm
from PIL import Image

model = timm.create_model("local-dir:.", pretrained=True).eval()
transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
features = model(transform(Image.open("image.jpg").convert("RGB"))[None])  # (1, {features})
"""
_TORCHSCRIPT = """\
import numpy as np
import torch
from PIL import Image

model = torch.jit.load("model.pt")
{images}
features = model(torch.from_numpy(images))  # (1, {features})
"""
_ONNX = """\
import numpy as np
import onnxruntime
from PIL import Image

model = onnxruntime.InferenceSession("model.onnx")
{images}
(features,) = model.run(None, {{"images": images}})  # (1, {features})
"""
_PIXELS = """\
image = Image.open("image.jpg").convert("RGB").resize(({size}, {size}), Image.Resampling.BILINEAR)
images = np.array(image).transpose(2, 0, 1)[None]"""
_NORMALISED = """\
image = Image.open("image.jpg").convert("RGB").resize(({size}, {size}), Image.Resampling.BILINEAR)
normalised = (np.array(image) / 255 - {mean}) / {std}
images = normalised.transpose(2, 0, 1)[None].astype("float32")"""
_CHECK = """\
from safetensors.{library} import load_file

vector = load_file("{vector}")
difference = abs({call} - vector["features"]).max()
assert difference < {tolerance:.2g}, difference
"""


def _head(license: str) -> str:
    """The card's metadata, which the hub reads."""
    fields = [
        "library_name: timm",
        "pipeline_tag: image-feature-extraction",
        *([f"license: {license}"] if license else []),
    ]
    return "\n".join(["---", *fields, "tags:", "- timm", "- image-feature-extraction", "- self-supervised", "---"])


def _what_it_is(model: Model) -> str:
    size = f"{model.size} × {model.size}"
    text = f"An image encoder: from RGB images of {size} pixels to {model.features} features."
    return f"{text} The network is {escaped(str(model.architecture))}."


def _loading(model: Model, settings: ExportSettings) -> str:
    if settings.to in ("timm", "hf"):
        code = _TIMM.format(features=model.features)
        more = "With `num_classes=10` in the first call, it has a classifier of ten classes to be trained."
        if settings.to == "hf":
            more += (
                " Once `hf upload YOU/NAME .` has put this folder on the hub, `hf-hub:YOU/NAME` loads it anywhere."
            )
        return f"In this folder, after `pip install timm`:\n\n```python\n{code}```\n\n{more}"
    package, code = ("torch", _TORCHSCRIPT) if settings.to == "torchscript" else ("onnxruntime", _ONNX)
    mean, std = ([round(value, 6) for value in values] for values in (model.mean, model.std))
    images = _PIXELS if settings.normalise_inside else _NORMALISED
    code = code.format(images=images.format(size=model.size, mean=mean, std=std), features=model.features)
    kind = "8-bit, from 0 to 255" if settings.normalise_inside else "normalised as below"
    takes = f"It takes any number of RGB images at once, (n, 3, {model.size}, {model.size}), {kind}."
    return f"{takes} In this folder, after `pip install {package} numpy pillow`:\n\n```python\n{code}```"


def _checking(settings: ExportSettings, tolerance: float) -> str:
    """How to compare with the features of the test vector, after the lines of _loading."""
    library, call = "torch", 'model(vector["images"])'
    if settings.to == "onnx":
        library, call = "numpy", 'model.run(None, {"images": vector["images"]})[0]'
    code = _CHECK.format(library=library, vector=TEST_VECTOR, call=call, tolerance=tolerance)
    return f"`{TEST_VECTOR}` holds images, and their features as PyTorch gives them on a CPU:\n\n```python\n{code}```"


# --- where it comes from ---


def _data(about: _RunFile, gaps: list[str]) -> str:
    """What it learned from; names of folders, never where they lie."""
    corpus, images = Path(about.corpus), Path(about.images)
    lines = []
    if about.corpus:
        amount = _amount(corpus, about.corpus_fingerprint)
        lines.append(f"- videos: the corpus “{escaped(corpus.name)}”" + (f", {amount}" if amount else ""))
        if not amount:
            gaps.append(f"the card does not say how much video it saw: {corpus} has moved or changed since then")
    if about.images:
        lines.append(f"- images: the folder or list “{escaped(images.name)}”")
    if not lines:
        gaps.append("the card does not say what the encoder learned from: its run.json is missing or does not say it")
    return "\n".join(lines) or "What it learned from is not known."


def _amount(corpus: Path, fingerprint: str) -> str:
    """How much of a corpus is trained on; "" where it is not as it was."""
    try:
        opened = Corpus(corpus)
        if open_index(opened).fingerprint != fingerprint:
            return ""
    except UserError:
        return ""
    table = opened.videos
    used = table.filter(pc.and_(pc.equal(table["status"], "ok"), pc.equal(table["split"], "train")))
    seconds, shots = (pc.sum(used[name]).as_py() or 0 for name in ("seconds", "shots"))
    return f"{used.num_rows:,} videos of {duration(seconds)} together, {shots:,} shots"


def _training(run: Path, about: _RunFile) -> str:
    """The recipe, those of its fields that matter, and the last value of each metric up to the encoder's step."""
    encoder = read_json(run / "encoder.json", _EncoderFile, "copy it again from its run")
    parts = [f"VIVI's recipe {escaped(encoder.recipe)}, {encoder.step:,} steps."]
    if (run / "recipe.json").exists():
        fields = flatten(read_recipe_json(run / "recipe.json"))
        if start := fields.get("encoder.start"):
            fields["encoder.start"] = Path(str(start)).name
        names = [name for name in dict.fromkeys([*FIELDS, *about.overridden]) if name in fields]
        # What is 0 or none needs no line, unless somebody wanted it so.
        shown = [name for name in names if name in about.overridden or fields[name] not in (0, "", "none")]
        before = {name: change.get("from", "") for name, change in about.overridden.items()}
        rows = [(name, fields[name], before.get(name, "")) for name in shown]
        parts.append(_table(("field", "value", "the recipe's own, where overridden"), rows))
    if (run / "metrics.jsonl").exists():
        last: dict[str, tuple[Any, int]] = {}
        for line in read_metrics(run):
            if line["step"] <= encoder.step:
                last |= {name: (value, line["step"]) for name, value in line.items() if value is not None}
        measured = [(name, *values) for name, values in last.items() if name not in ("step", *TIMING)]
        parts.append(_table(("metric, when last logged", "value", "step"), measured))
    return "\n\n".join(parts)


def _results(folder: Path, model: Model, gaps: list[str]) -> str:
    """What vivi evaluate measured with exactly these weights."""
    results, problems = read_all(folder)
    gaps += problems
    own = [result for result in results if result.encoder_checksum == model.checksum]
    if not own:
        evaluate = f"vivi evaluate linear --encoder {shlex.quote(model.source)} --out {shlex.quote(str(folder))}"
        raise UserError(f"--results {folder} has no result of these weights: measure them first ({evaluate} ...)")
    return _table(("benchmark", "on", "result", "images"), [_result(result) for result in own])


def _result(result: AnyResult) -> tuple[str, str, str, str]:
    if isinstance(result, RobustResult):
        right, robust = (100 * result.curve.complete[k].right / result.curve.complete[k].n for k in (0, -1))
        measured = f"{right:.1f} % of anchors, pm-{result.farthest} {robust:.1f} %"
        return "vid-robust", result.set, measured, f"{result.anchors:,} anchors"
    if isinstance(result, DetectionResult):
        schedule, runs = f"detection ({result.schedule})", len(result.runs)
        return schedule, result.set, f"AP {100 * result.median.ap:.1f} ({_seeds(runs)})", _images(result.images)
    quick = ", quick" if result.quick else ""
    score = f"{100 * result.score.median:.1f} % ({_seeds(len(result.score.accuracies))})"
    return f"{result.benchmark} ({result.protocol}{quick})", result.title, score, _images(result.images)


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"median of {count} seeds"


def _images(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {part}" for part, count in counts.items())


def _license(license: str, gaps: list[str]) -> str:
    if license:
        return license
    gaps.append("the card names no license: --license apache-2.0, or another, gives it one")
    return "None is named here: ask whoever gave you this folder."


# --- tables ---


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    return "\n".join([*lines, *("| " + " | ".join(map(_number, row)) + " |" for row in rows)])


def _number(value: object) -> str:
    """A cell: numbers as people read them, all else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escaped(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
