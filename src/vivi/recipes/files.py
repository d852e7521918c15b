"""Recipes as files and by field: recipe.json, the differences of two, one field set by its dotted name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from vivi.recipes.losses import FRAME_LOSSES, VIDEO_LOSSES, LossSettings
from vivi.recipes.scaled import RECIPES
from vivi.recipes.schema import Recipe
from vivi.runtime.errors import UserError, did_you_mean
from vivi.runtime.storage import read_json

_KIND = "kind"  # of a loss, in JSON

LOSSES: dict[str, dict[str, type[LossSettings] | None]] = {
    field: {"none": None, **{loss.__name__.lower(): loss for loss in losses}}
    for field, losses in (("loss.frame", FRAME_LOSSES), ("loss.video", VIDEO_LOSSES))
}
"""The losses that a field of a recipe can hold, by name."""


def find_recipe(name: str) -> Recipe:
    """The recipe of this name, or of this recipe.json."""
    if name in RECIPES:
        return RECIPES[name]
    if name == "auto":
        raise UserError(
            "auto is no recipe, but vivi train auto --corpus CORPUS chooses one; the run's recipe.json has it"
        )
    path = Path(name)
    try:
        if name and (path / "corpus.json").exists():
            raise UserError(f"{name} is a corpus, not a recipe: vivi train RECIPE --corpus {name}")
        if name and (path.suffix == ".json" or path.exists()):
            return read_recipe(path / "recipe.json" if path.is_dir() else path)
    except OSError as error:  # a name too long, a folder that may not be searched
        raise UserError(f"'{name}' is no recipe, and as a path: {error.strerror}; vivi recipes lists them") from None
    raise UserError(f"there is no recipe '{name}'{did_you_mean(name, RECIPES)}: vivi recipes lists them all")


def read_recipe(path: Path) -> Recipe:
    """A recipe.json; every field must be known and of its type, missing ones have their default."""
    recipe: Recipe = _parse(Recipe, {"name": "", **read_recipe_json(path)}, str(path))
    if not (recipe.name.isprintable() and 0 < len(recipe.name) <= 200):
        name = f"{recipe.name[:80]!a}"
        raise UserError(f"{path}: the name {name} is empty, too long or cannot be printed; choose another")
    return recipe


def read_recipe_json(path: Path) -> dict[str, Any]:
    """The fields that a recipe.json gives, whatever they are."""
    return read_json(path, dict[str, Any], "correct it, or take another recipe")


def recipe_json(recipe: Recipe) -> str:
    return json.dumps(as_json(recipe), indent=2) + "\n"


def as_json(value: Any) -> Any:
    """A recipe, or a part of one, as JSON holds it; a loss has its name beside its fields."""
    if isinstance(value, tuple):
        return list(value)
    if not is_dataclass(value):
        return value
    kind = {_KIND: value.name} if isinstance(value, LossSettings) else {}
    return kind | {field.name: as_json(getattr(value, field.name)) for field in fields(value)}


def flat(recipe: Recipe) -> dict[str, Any]:
    """Every field by its dotted name. A loss is there by its name, and then field by field."""
    return flatten(as_json(recipe))


def default_of(recipe: Recipe, name: str) -> Any:
    """The default of a field of the recipe or of its losses, by its dotted name; None if it has none."""
    *parts, last = name.split(".")
    [field] = [field for field in fields(reduce(getattr, parts, recipe)) if field.name == last]
    return None if field.default is MISSING else as_json(field.default)


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The same of what a recipe.json holds."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        elif name == _KIND:
            flat[prefix.rstrip(".")] = value
        else:
            flat[prefix + name] = "none" if value is None else value
    return flat


def differences(before: Recipe, after: Recipe) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, by their dotted names, with both values; None for a field that one of them lacks."""
    old, new = flat(before), flat(after)
    names = dict.fromkeys([*old, *new])
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def with_field(recipe: Recipe, name: str, text: str, where: str = "--sweep") -> Recipe:
    """The recipe with one field, given by its dotted name, set to what `text` says. A loss is set by its name.
    `where` is named in errors: it says where this was asked for."""
    name, known = name.replace("-", "_"), flat(recipe)
    if name not in known:
        raise UserError(f"a recipe has no field '{name}'{did_you_mean(name, known)}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, str) and value == known[name]:
        return recipe  # a loss that is named once more keeps its settings
    content = part = as_json(recipe)
    *parts, last = name.split(".")
    for inner in parts:
        part = part[inner]
    part[last] = value
    changed: Recipe = _parse(Recipe, content, where)
    return changed


def sweep(recipe: Recipe, out: Path, values: str) -> list[tuple[Path, Recipe]]:
    """A run for each value in `field=value,value,...`, with its folder; without values, the one of the recipe."""
    if not values:
        return [(out, recipe)]
    name, _, rest = values.partition("=")
    name, choices = name.strip().replace("-", "_"), [choice.strip() for choice in rest.split(",")]
    if not all(choices) or name == "name":
        raise UserError(f"--sweep {values} is not of the form field=value,value,...")
    if isinstance(flat(recipe).get(name), list):
        raise UserError(f"--sweep {name}: only fields of one value can be swept")
    if (out / "recipe.json").exists():
        raise UserError(f"{out} is a run; a sweep makes a folder of runs: choose another --out")
    swept = {flat(run)[name]: run for run in (with_field(recipe, name, choice) for choice in choices)}
    return [(out / f"{name}={str(value).replace('/', '_')}", run) for value, run in swept.items()]


# --- from JSON, checked against the types of the fields ---


def _parse(kind: Any, value: Any, where: str, name: str = "") -> Any:
    """A recipe, or the field of this dotted name, of a type. A loss is an object of its kind and settings, or its
    name alone."""
    if name in LOSSES:
        value = dict(value) if isinstance(value, dict) else {_KIND: "none" if value is None else value}
        chosen, known = value.pop(_KIND, f"of no {_KIND}"), LOSSES[name]
        if not isinstance(chosen, str) or chosen not in known:
            raise UserError(f"{where}: {name} is {_short(chosen)}; it must be one of {', '.join(known)}")
        kind = known[chosen]
        if kind is None:
            return None
    if not is_dataclass(kind):
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            raise UserError(f"{where}: {name} is {_short(value)}; it must be {_in_words(kind)}") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: {name} must be an object of fields")
    prefix = f"{name}." if name else ""
    hints, names = get_type_hints(kind), [field.name for field in fields(kind)]
    for field in value:
        if field not in names:
            raise UserError(f"{where}: there is no field {prefix + field[:80]!r}{did_you_mean(field, names)}")
    parsed = {field: _parse(hints[field], part, where, prefix + field) for field, part in value.items()}
    return kind(**parsed)  # type: ignore[operator]


def _short(value: Any) -> str:
    """A value as a part of one line, however long it is."""
    return " ".join(str(value)[:80].split())


def _in_words(kind: Any) -> str:
    """What a field of this type may hold."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is tuple:
        count = "" if Ellipsis in get_args(kind) else f"{len(get_args(kind))} "
        return f"a list of {count}{'whole ' if int in get_args(kind) else ''}numbers"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
