"""What a command is, and which flags it has: read off its dataclasses by the rules that tyro follows."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, Suppress


@dataclass(frozen=True)
class Command:
    """What all commands have in common; their fields are their flags."""

    examples: ClassVar[tuple[str, ...]] = ()  # its help begins with them
    everyday: ClassVar[tuple[str, ...]] = ()  # the flags that its help shows; none: all of them
    goes_on: ClassVar[bool] = False  # whether the same command goes on after a stop

    @property
    def only_prints(self) -> bool:
        """Whether nothing is left of it where its output cannot be written."""
        return False

    @classmethod
    def defaults(cls, words: Sequence[str]) -> Any:
        """The command with its defaults, where they depend on the words that follow it."""
        return None

    def run(self, console: Console) -> Any:
        """Does what the command is for; returns what --json prints."""
        raise NotImplementedError


@dataclass(frozen=True)
class Group:
    """Commands that begin with the same word."""

    about: str
    examples: tuple[str, ...]
    commands: dict[str, type[Command] | Group]


@dataclass(frozen=True)
class Flag:
    """A flag, or a word that stands without one."""

    names: tuple[str, ...]  # as they are typed; of a word: what it stands for
    value: str  # what follows it, for example PATH; of a switch: nothing
    default: Any  # MISSING: it must be given
    field: str
    owner: type  # the dataclass that has the field
    said: str = ""  # in its annotation

    @property
    def positional(self) -> bool:
        return not self.names[0].startswith("-")

    @property
    def help(self) -> str:
        return self.said or _docstrings(self.owner).get(self.field, "")


def flags_of(kind: Any, default: Any = MISSING, prefix: str = "") -> Iterator[Flag]:
    """The flags of a command, or of a dataclass that is a part of one; `default` has the defaults, if they are not
    those of the class."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        hint, marks = _bare(hints[field.name])
        if Suppress in marks:
            continue
        settings: Any = next((mark for mark in marks if hasattr(mark, "aliases")), tyro.conf.arg())
        name = field.name.replace("_", "-") if settings.name is None else settings.name
        value = _default(field) if default is MISSING else getattr(default, field.name)
        part = hint if is_dataclass(hint) else type(value)
        if is_dataclass(part):
            inner = "" if OmitArgPrefixes in marks else f"{prefix}{name}." if name else prefix
            yield from flags_of(part, value, inner)
        elif value is not None or not _is_dataclasses(hint):
            names = [f"--{prefix}{name}", *(settings.aliases or ())]
            names += [f"--{prefix}no-{name}"] if hint is bool else []
            if Positional in marks:
                names = [settings.metavar or field.name.upper()]
            value = MISSING if value is tyro.MISSING else value
            yield Flag(tuple(names), _value(hint), value, field.name, kind, settings.help or "")


def _bare(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without what it is annotated with, and that."""
    return (hint.__origin__, hint.__metadata__) if get_origin(hint) is Annotated else (hint, ())


def _is_dataclasses(hint: Any) -> bool:
    """Whether it is a choice of dataclasses, as a loss or none is."""
    return any(is_dataclass(one) for one in get_args(hint))


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return MISSING if field.default_factory is MISSING else field.default_factory()


def _value(hint: Any) -> str:
    """What a flag of this type wants."""
    hint, _ = _bare(hint)
    words = get_args(hint)
    if get_origin(hint) is Literal:
        return "|".join(words)
    if get_origin(hint) in (Union, UnionType):
        return _value(words[0])
    if get_origin(hint) is tuple:
        return f"{_value(words[0])} ..." if Ellipsis in words else " ".join(map(_value, words))
    return {int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH", bool: ""}[hint]


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """What stands below each field of a dataclass, in one line."""
    found: dict[str, str] = {}
    for owner in filter(is_dataclass, reversed(kind.__mro__)):
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, after in pairwise(definition.body):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found
