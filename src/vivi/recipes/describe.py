"""Recipes in words and tables, for the terminal."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vivi.recipes.files import flat
from vivi.recipes.scaled import METHODS, PAPER
from vivi.recipes.schema import Recipe


def print_recipes(console: Console) -> list[dict[str, str]]:
    """The paper's recipes, a line each; what the smaller ones change. Returns the lines."""
    rows = []
    for recipe in PAPER:
        loss = recipe.loss
        names = loss.frame.name if loss.frame else "", loss.video.name if loss.video else ""
        terms = ((1.0, names[0]), (loss.video_weight, names[1]), (loss.supervised_weight, "labels"))
        row = {
            "recipe": recipe.name,
            "batch": describe_batch(recipe, short=True),
            "losses": " + ".join(n if weight == 1 else f"{weight:g} {n}" for weight, n in terms if weight and n),
            "besides": ", ".join(_besides(recipe)),
        }
        rows.append(row)
    table = Table("recipe", "a step", "losses", "besides", box=None, pad_edge=False)
    for row in rows:
        table.add_row(Text(row["recipe"], no_wrap=True), row["batch"], row["losses"], row["besides"])
    console.print(table)
    console.print("a step: videos × shots × frames; or so many frames or images × how often each is augmented")
    console.print("NAME-small: 112 px, at most 256 shots and images a step, for one GPU and a corpus of hours")
    console.print("NAME-tiny: 48 px, a thin ResNet-18, for two CPU cores and a few minutes")
    console.print(
        "auto: vivi train auto --corpus CORPUS chooses one that fits your videos and your machine, and says why"
    )
    console.print("vivi recipes NAME prints every field; vivi train NAME --field value overrides it")
    return rows


def _besides(recipe: Recipe) -> Iterator[str]:
    """What sets a recipe apart from others of the same losses."""
    if recipe.encoder.width > 1 or "x3_" in recipe.encoder.name:
        yield "×3 width"
    if recipe.encoder.name.endswith("_bit"):
        yield "group norm"
    if recipe.images.fraction < 1:
        yield f"{100 * recipe.images.fraction:g} % of labels"
    if "v0" in (recipe.augment.policy, recipe.images.policy):
        yield "AutoAugment"


def describe_batch(recipe: Recipe, short: bool = False) -> str:
    """What a step sees."""
    batch, images = recipe.batch, recipe.images
    parts = []
    if batch.videos and batch.source == "shot":
        units = ("", "", "") if short else (" videos", " shots", " frames")
        counts = (batch.videos, batch.shots, batch.frames)
        parts.append(" × ".join(f"{count}{unit}" for count, unit in zip(counts, units, strict=True)))
    elif batch.videos:
        parts.append(f"{batch.videos} {batch.source}s" + (f" × {batch.frames}" if batch.frames > 1 else ""))
    if images.count:
        times = f" × {images.copies}" if images.copies > 1 else ""
        parts.append(f"{images.count} labelled{'' if short else ' images'}{times}")
    return " + ".join(parts)


def print_recipe(recipe: Recipe, console: Console) -> None:
    """What the recipe is expected to give, and every field by its dotted name, which is also its flag."""
    method = METHODS.get(recipe.name)
    if method is not None:
        console.print(inspect.getdoc(method), soft_wrap=True)
        console.print()
    table = Table("field", "value", box=None)
    for name, value in flat(recipe).items():
        table.add_row(name, " ".join(map(str, value)) if isinstance(value, list) else str(value))
    console.print(table)
