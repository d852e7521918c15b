"""From the outputs of a classifier to the classes of a set: 288 of ImageNet's classes are 30 of ImageNet-Vid's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vivi.evaluate.vid_robust.files import is_index, named, read_json
from vivi.runtime.errors import UserError

ClassMap = tuple[tuple[int, ...], ...]  # for each class of the set, the outputs that mean it
MOST_CLASSES = 10_000
IMAGENET = 1000  # outputs that the maps of published sets are for


def read_class_map(path: Path, classes: Sequence[str], have_names: bool = True) -> ClassMap:
    """Of a file that goes from classes to outputs, or from outputs to classes; `classes` are the set's.

    Where these have no names, labels alone tell how many there are, and the map may know more.
    """
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
    if not pairs:
        raise UserError(f"{path} is no class map: it names no outputs")
    class_of: dict[int, int] = {}
    for name, output in pairs:
        number, place = _number(name, classes if have_names else ()), _number(output, ())
        if number is None:
            raise UserError(f"{path} is no class map: the set has no class {name!r}")
        if place is None:
            raise UserError(f"{path} is no class map: {output!r} for class {name!r} is no number of an output")
        if number >= (len(classes) if have_names else MOST_CLASSES):
            raise UserError(f"{path} has a class {number}, the set has {len(classes)}: 0 to {len(classes) - 1}")
        if class_of.setdefault(place, number) != number:
            raise UserError(
                f"{path} is no class map: output {place} belongs to classes {class_of[place]} and {number}"
            )
    outputs: list[list[int]] = [[] for _ in range(max(len(classes), 1 + max(class_of.values())))]
    for place, number in sorted(class_of.items()):
        outputs[number].append(place)
    return tuple(map(tuple, outputs))


def _number(value: Any, classes: Sequence[str]) -> int | None:
    """A class or an output: by number, also as text, as the keys of JSON are; or a class by its name."""
    if value in classes:
        return classes.index(value)
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if is_index(value) else None


def outputs_of_classes(
    class_map: ClassMap | None,
    map_given: bool,
    classes: Sequence[str],
    named_classes: bool,
    outputs: int,
    names: Sequence[str] | None,
) -> tuple[ClassMap | None, tuple[str, ...]]:
    """Which outputs of a classifier mean each class of a set; None: they are the same. And notes.

    A class map that users give says so, and must fit. That of the set's metadata is for classifiers of ImageNet. A
    classifier of the set's own classes needs none: it is matched by the names of classes where both have some, else
    by number.
    """
    last = max((output for of_class in class_map or () for output in of_class), default=-1)
    if class_map is not None and map_given:
        if last >= outputs:
            raise UserError(
                f"the class map names output {last:,}, the classifier has {outputs:,}, from 0 on: "
                "give a --class-map for its own outputs"
            )
        return class_map, ()
    if class_map is not None and last < outputs == IMAGENET:
        return class_map, ()
    if names is not None and named_classes:
        return _by_name(classes, names)
    if outputs == len(classes):
        return None, ()
    if class_map is not None:
        meant = f"is for ImageNet's {IMAGENET:,}" if last < IMAGENET else f"names output {last:,}"
        raise UserError(
            f"the classifier has {outputs:,} outputs, the class map of the set {meant}: give a --class-map"
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
