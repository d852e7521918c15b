"""What vivi --help prints, of all commands or of one."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING

from rich.console import Console
from rich.text import Text

from vivi.cli.command import Command, Flag, Group

EVERY_COMMAND = (
    ("-q, --quiet", "Print warnings, errors and the last line only."),
    ("-v, --verbose", "Also say what was decided and why, and where an unexpected error happened."),
    ("--json", "Print what came of it as JSON; everything else goes to standard error."),
    ("-h, --help", "Show this help; with --help-all, all flags."),
)
_WIDEST, _COLUMN = 110, 30  # characters of a line, and of the column of flags


def print_group(prog: str, group: Group, console: Console) -> None:
    """The help of several commands: what each is for."""
    _print(_usage(f"{prog} COMMAND ...", group.about, group.examples), console)
    rows = [(name, _first_sentence(kind)) for name, kind in group.commands.items()]
    _print([("commands:", [*_table(rows)]), ("every command:", [*_table(EVERY_COMMAND)])], console)
    console.print(f"\n{prog} COMMAND --help shows its flags.")


def print_command(prog: str, kind: type[Command], flags: Sequence[Flag], everything: bool, console: Console) -> None:
    """The help of a command: examples, then its flags; of a command with very many, those of every day, unless
    `everything` is asked for."""
    needed = [flag for flag in flags if flag.default is MISSING]
    words = [flag.names[0] if flag.positional else f"{flag.names[0]} {flag.value}" for flag in needed]
    words += [f"[{flag.names[0]}]" for flag in flags if flag.positional and flag.default is not MISSING]
    about = inspect.getdoc(kind) or ""
    _print(_usage(" ".join([prog, *words, "[FLAGS]"]), about, kind.examples), console)
    if kind.everyday and not everything:
        shown = [flag for name in ("RECIPE", *kind.everyday) for flag in flags if name in flag.names]
        _print([("flags:", [*_table(map(_row, shown))])], console)
        console.print(f"\n{len(flags) - len(shown)} more flags: {prog} {needed[0].names[0]} --help-all")
    else:
        groups: dict[str, list[Flag]] = {"flags:": []}
        for flag in flags:
            heading = "flags:" if issubclass(kind, flag.owner) else f"{inspect.getdoc(flag.owner)}"
            groups.setdefault(heading, []).append(flag)
        _print([(heading, [*_table(map(_row, part))]) for heading, part in groups.items()], console)
    _print([("every command:", [*_table(EVERY_COMMAND)])], console)


def _usage(line: str, about: str, examples: Sequence[str]) -> list[tuple[str, list[str]]]:
    width = _width()
    wrapped = textwrap.wrap(" ".join(about.split()), width)
    return [(f"usage: {line}", []), ("", wrapped), ("examples:", [f"  {one}" for one in examples])]


def _row(flag: Flag) -> tuple[str, str]:
    name = flag.names[0]
    if flag.default is True:  # a switch that is on
        name = flag.names[-1].replace("no-", "[no-]")
    return f"{name} {flag.value}" if flag.value and not flag.positional else name, flag.help + _default(flag)


def _default(flag: Flag) -> str:
    value = flag.default
    if value is MISSING or value in (None, False, "", ()):
        return ""
    words = value if isinstance(value, tuple) else ("on" if value is True else value,)
    return f" [default: {' '.join(f'{word:.5g}' if isinstance(word, float) else str(word) for word in words)}]"


def _table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Two columns; what does not fit the first has a line of its own."""
    for name, text in rows:
        lines = textwrap.wrap(text, _width() - _COLUMN - 2) or [""]
        first = f"  {name}"
        if len(first) > _COLUMN:
            yield first
        else:
            lines[0] = f"{first:{_COLUMN + 2}}{lines[0]}"
            yield lines.pop(0).rstrip()
        yield from (" " * (_COLUMN + 2) + line for line in lines)


def _first_sentence(kind: Group | type[Command]) -> str:
    about = kind.about if isinstance(kind, Group) else inspect.getdoc(kind) or ""
    return " ".join(about.split()).partition(". ")[0].rstrip(".") + "."


def _width() -> int:
    return min(_WIDEST, shutil.get_terminal_size().columns)


def _print(sections: Iterable[tuple[str, list[str]]], console: Console) -> None:
    for heading, lines in sections:
        if heading and (lines or heading.startswith("usage")):
            console.print(Text(("" if heading.startswith("usage") else "\n") + heading, style="bold"), soft_wrap=True)
        elif lines:
            console.print()
        for line in lines:
            console.print(line, soft_wrap=True)
