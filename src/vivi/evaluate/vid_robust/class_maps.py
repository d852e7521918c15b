"""From the outputs of a classifier to the classes of a set: 288 of ImageNet's classes are 30 of ImageNet-Vid's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vivi.evaluate.metadata import named, read_json
from vivi.runtime.errors import UserError

ClassMap = tuple[tuple[int, ...], ...]  # for each class of the set, the outputs that mean it
IMAGENET = 1000  # outputs that the maps of published sets are for
_MOST_CLASSES = 10_000  # of a set without names


def read_class_map(path: Path, names: Sequence[str], labels: int) -> ClassMap:
    """Of a file that goes from classes to lists of outputs, or from outputs to classes. Classes are known by number,
    or by their names in the set; a set without names has at least as many as its labels say."""
    content: dict[str, int | str | list[int]] = read_json(path, dict[str, int | str | list[int]])
    pairs: list[tuple[int | str, int | str]] = []  # class, output
    for key, value in content.items():
        pairs += [(key, output) for output in value] if isinstance(value, list) else [(value, key)]
    if not pairs:
        raise UserError(f"{path} is no class map: it names no outputs")
    class_of: dict[int, int] = {}
    for name, output in pairs:
        if not str(output).isdecimal():
            raise UserError(f"{path} is no class map: {output!r} for class {name!r} is no number of an output")
        number = names.index(str(name)) if name in names else int(name) if str(name).isdecimal() else -1
        if not 0 <= number < (len(names) or _MOST_CLASSES):
            raise UserError(f"{path} is no class map: the set has no class {name!r}")
        if class_of.setdefault(int(output), number) != number:
            raise UserError(
                f"{path} is no class map: output {output} belongs to classes {class_of[int(output)]} and {number}"
            )
    count = len(names) or max(labels, 1 + max(class_of.values()))
    return tuple(tuple(sorted(o for o, number in class_of.items() if number == of)) for of in range(count))


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
    others = f"the class map of the set is for ImageNet's {IMAGENET:,}" if class_map else f"the set {len(classes):,}"
    raise UserError(
        f"the classifier has {outputs:,} classes, {others}: a --class-map must say which of them belong together"
    )


def _by_name(classes: Sequence[str], names: Sequence[str]) -> tuple[ClassMap | None, tuple[str, ...]]:
    if tuple(names) == tuple(classes):
        return None, ()
    places = {name: place for place, name in enumerate(names)}
    unknown = [name for name in classes if name not in places]
    if unknown:
        raise UserError(
            f"the classifier does not know {len(unknown):,} of the set's {len(classes):,} classes, {named(unknown)}: "
            "a --class-map must say what it calls them"
        )
    more = len(names) - len(classes)
    notes = (f"{more:,} classes of the classifier are not in the set: they are left aside",) if more else ()
    return tuple((places[name],) for name in classes), notes
