"""Recipes as files and on the command line: recipe.json, differences, one field set by its dotted name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vivi.errors import UserError
from vivi.recipes import PAPER, RECIPES, SWEEPS, Recipe
from vivi.storage import read_file

_LONGEST_NAME = 200


def find_recipe(name: str) -> Recipe:
    """The recipe of this name, or of this recipe.json."""
    if name in RECIPES:
        return RECIPES[name]
    path = Path(name)
    try:
        if path.suffix == ".json" or path.exists():
            return read_recipe(path / "recipe.json" if path.is_dir() else path)
    except OSError as error:  # a name too long, a folder that may not be searched
        raise UserError(f"'{name}' is no recipe, and as a path: {error.strerror}; vivi recipes lists them") from None
    raise UserError(f"there is no recipe '{name}'{_nearest(name, RECIPES)}; vivi recipes lists them all")


def read_recipe(path: Path) -> Recipe:
    """A recipe.json; every field must be known and of its type, missing ones have their default."""
    try:
        content = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as a recipe ({error}); mend it, or name another one") from None
    recipe = _build(Recipe, content, str(path), "")
    assert isinstance(recipe, Recipe)
    if not recipe.name.isprintable() or len(recipe.name) > _LONGEST_NAME:
        raise UserError(
            f"{path}: the name {recipe.name[:80]!a} cannot be printed, or has over {_LONGEST_NAME} characters; "
            "choose another"
        )
    return recipe


def recipe_json(recipe: Recipe) -> str:
    return json.dumps(asdict(recipe), indent=2) + "\n"


def flat(recipe: Recipe) -> dict[str, Any]:
    """Every field by its dotted name."""
    return dict(_flat(recipe, ""))


def _flat(values: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for item in fields(values):
        value = getattr(values, item.name)
        if is_dataclass(value):
            yield from _flat(value, f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, value


def differences(before: Recipe, after: Recipe) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, by their dotted names, with both values."""
    old, new = flat(before), flat(after)
    return {name: (old[name], new[name]) for name in old if old[name] != new[name]}


def with_field(recipe: Recipe, name: str, text: str) -> Recipe:
    """The recipe with one field, given by its dotted name, set to what `text` says."""
    name = name.replace("-", "_")
    if name not in flat(recipe):
        raise UserError(f"a recipe has no field '{name}'{_nearest(name, flat(recipe))}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    changed = _replaced(recipe, name.split("."), value, name)
    assert isinstance(changed, Recipe)
    return changed


def _replaced(owner: Any, path: list[str], value: Any, name: str) -> Any:
    """The dataclass with the field at the end of `path` set."""
    first, *rest = path
    if rest:
        return replace(owner, **{first: _replaced(getattr(owner, first), rest, value, name)})
    return replace(owner, **{first: _value(get_type_hints(type(owner))[first], value, "--sweep", name)})


def sweep(recipe: Recipe, out: Path, values: str) -> list[tuple[Path, Recipe]]:
    """A run for each value in `field=value,value,...`, with its folder; without values, the one of the recipe."""
    if not values:
        return [(out, recipe)]
    name, _, rest = values.partition("=")
    name, choices = name.strip().replace("-", "_"), [choice.strip() for choice in rest.split(",")]
    if not all(choices) or name == "name":
        raise UserError(f"--sweep {values} is not of the form field=value,value,...")
    if isinstance(flat(recipe).get(name), tuple):
        raise UserError(f"--sweep {name}: only fields of one value can be swept")
    if (out / "recipe.json").exists():
        raise UserError(f"{out} is a run; a sweep makes a folder of runs: choose another --out")
    swept = {flat(run)[name]: run for run in (with_field(recipe, name, choice) for choice in choices)}
    return [(out / f"{name}={str(value).replace('/', '_')}", run) for value, run in swept.items()]


def print_recipes(console: Console) -> None:
    """The paper's recipes, a line each; what the smaller ones change."""
    table = Table("recipe", "a step", "losses", "besides", box=None, pad_edge=False)
    for recipe in PAPER:
        batch, images, loss = recipe.batch, recipe.images, recipe.loss
        of_videos = {
            "shot": f"{batch.videos} × {batch.shots} × {batch.frames}",
            "frame": f"{batch.videos} frames × {batch.frames}",
            "image": f"{batch.videos} images × {batch.frames}",
        }[batch.source]
        of_images = f"{images.count} labelled" + (f" × {images.copies}" if images.copies > 1 else "")
        weighed = ((1, loss.frame), (loss.video_weight, loss.video), (loss.supervised_weight, "labels"))
        table.add_row(
            Text(recipe.name, no_wrap=True),
            " + ".join([of_videos] * (batch.videos > 0) + [of_images] * (images.count > 0)),
            " + ".join(
                name if weight == 1 else f"{weight:g} {name}" for weight, name in weighed if weight and name != "none"
            ),
            ", ".join(_besides(recipe)),
        )
    console.print(table)
    console.print("a step: videos × shots × frames; or frames, images, labelled images, augmented × times")
    console.print("NAME-small: 112 px, at most 256 shots and images a step, for one GPU and a corpus of hours")
    console.print("NAME-tiny: 48 px, a thin ResNet-18, for two CPU cores and a few minutes")
    console.print("vivi recipes NAME prints every field; vivi train NAME --field value overrides it")


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


def batch_in_words(recipe: Recipe) -> str:
    """What a step sees."""
    batch, images = recipe.batch, recipe.images
    parts = []
    if batch.videos and batch.source == "shot":
        parts.append(f"{batch.videos} videos × {batch.shots} shots × {batch.frames} frames")
    elif batch.videos:
        times = f" × {batch.frames}" if batch.frames > 1 else ""
        parts.append(f"{batch.videos} {'images' if batch.source == 'image' else 'frames'}{times}")
    if images.count:
        times = f" × {images.copies}" if images.copies > 1 else ""
        parts.append(f"{images.count} labelled images{times}")
    return " + ".join(parts)


def print_recipe(recipe: Recipe, console: Console) -> None:
    """Every field by its dotted name, which is also its flag."""
    table = Table("field", "value", box=None)
    for name, value in flat(recipe).items():
        table.add_row(name, " ".join(map(str, value)) if isinstance(value, tuple) else str(value))
    console.print(table)
    if recipe.name in SWEEPS:
        name, values = SWEEPS[recipe.name]
        console.print(f"the paper's sweep: --sweep {name}={','.join(map(str, values))}")


def _build(kind: Any, content: Any, where: str, prefix: str) -> Any:
    """A dataclass from what JSON holds."""
    if not isinstance(content, dict):
        raise UserError(f"{where}: {prefix.rstrip('.') or 'a recipe'} must be an object of fields")
    hints = get_type_hints(kind)
    for name in content:
        if name not in hints:
            raise UserError(f"{where}: there is no field {prefix + name[:80]!r}{_nearest(name[:80], hints)}")
    if kind is Recipe and "name" not in content:
        raise UserError(f"{where}: the field 'name' is missing")
    return kind(**{name: _value(hints[name], value, where, prefix + name) for name, value in content.items()})


def _value(kind: Any, value: Any, where: str, name: str) -> Any:
    """A field's value, checked against its type."""
    if is_dataclass(kind):
        return _build(kind, value, where, f"{name}.")
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise UserError(f"{where}: {name} is {repr(value)[:80]}; it must be one of {', '.join(get_args(kind))}")
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        right_length = isinstance(value, list | tuple) and (inner[-1] is Ellipsis or len(value) == len(inner))
        if right_length:
            return tuple(_value(inner[0], item, where, name) for item in value)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    elif type(value) is kind:
        return value
    raise UserError(f"{where}: {name} is {_short(value)}, which is no {_kind(kind)}")


def _short(value: Any) -> str:
    """A value as a part of one line, however long it is."""
    return " ".join(str(value)[:80].split())


def _kind(kind: Any) -> str:
    if get_origin(kind) is tuple:
        count = "" if Ellipsis in get_args(kind) else f"{len(get_args(kind))} "
        return f"list of {count}numbers"
    return {int: "whole number", float: "finite number", bool: "true or false", str: "text"}[kind]


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def check_flags(named: str, defaults_of: str, command: str) -> None:
    """Raises where the flags had the defaults of another recipe."""
    if named != defaults_of:
        raise UserError(f"say which recipe right after {command}: vivi {command} {named} ...")
