"""From the outputs of a classifier to the classes of a set: 288 of ImageNet's classes are 30 of ImageNet-Vid's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vivi.errors import UserError
from vivi.robust.files import is_index, named, read_json

ClassMap = tuple[tuple[int, ...], ...]  # for each class of the set, the outputs that mean it


def read_class_map(path: Path, classes: Sequence[str]) -> ClassMap:
    """Of a file that goes from classes to outputs, or from outputs to classes; `classes` are the set's, if it has
    names."""
    content = read_json(path)
    if isinstance(content, list):
        content = dict(enumerate(content))
    if not isinstance(content, dict) or not content:
        raise UserError(
            f"{path} is no class map: it must go from classes to lists of outputs, or from outputs to classes"
        )
    if all(isinstance(outputs, list) for outputs in content.values()):
        pairs = [(key, output) for key, outputs in content.items() for output in outputs]
    else:
        pairs = [(name, output) for output, name in content.items()]
    numbered = [(_number(name, classes), _number(output, ())) for name, output in pairs]
    wrong = [pair for pair, numbers in zip(pairs, numbered, strict=True) if None in numbers]
    if wrong:
        raise UserError(
            f"{path} is no class map: {wrong[0][1]!r} for class {wrong[0][0]!r} is no number of an output"
        )
    known = [(number, output) for number, output in numbered if number is not None and output is not None]
    last = max((number for number, _ in known), default=-1)
    if classes and last >= len(classes):
        raise UserError(f"{path} has a class {last}, the set has {len(classes)}: 0 to {len(classes) - 1}")
    outputs: list[list[int]] = [[] for _ in range(len(classes) or last + 1)]
    for number, output in known:
        outputs[number].append(output)
    return tuple(tuple(sorted(set(of_class))) for of_class in outputs)


def _number(value: Any, classes: Sequence[str]) -> int | None:
    """A class or an output: by number, also as text, as the keys of JSON are; or a class by its name."""
    if value in classes:
        return classes.index(value)
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if is_index(value) else None


def outputs_of_classes(
    class_map: ClassMap | None, classes: Sequence[str], named_classes: bool, outputs: int, names: Sequence[str] | None
) -> tuple[ClassMap | None, tuple[str, ...]]:
    """Which outputs of a classifier mean each class of a set; None: they are the same. And notes.

    The class map says so, where the classifier has all the outputs that it names. A classifier of the set's own
    classes needs none: it is matched by the names of classes where both have some, else by number.
    """
    last = max((output for of_class in class_map or () for output in of_class), default=-1)
    if class_map is not None and last < outputs:
        return class_map, ()
    if names is not None and named_classes:
        return _by_name(classes, names)
    if outputs == len(classes):
        return None, ()
    if class_map is not None:
        raise UserError(
            f"the class map names output {last:,}, the classifier has {outputs:,}: "
            "give a --class-map for its own outputs"
        )
    raise UserError(
        f"the classifier has {outputs:,} outputs, the set {len(classes):,} classes: "
        "a --class-map must say which of them belong together"
    )


def _by_name(classes: Sequence[str], names: Sequence[str]) -> tuple[ClassMap | None, tuple[str, ...]]:
    if tuple(names) == tuple(classes):
        return None, ()
    places: Mapping[str, int] = {name: place for place, name in enumerate(names)}
    unknown = [name for name in classes if name not in places]
    if unknown:
        raise UserError(
            f"the classifier does not know {len(unknown):,} of the set's {len(classes):,} classes, {named(unknown)}: "
            "a --class-map must say what it calls them"
        )
    more = len(names) - len(classes)
    notes = (f"{more:,} classes of the classifier are not in the set: they are left aside",) if more else ()
    return tuple((places[name],) for name in classes), notes
