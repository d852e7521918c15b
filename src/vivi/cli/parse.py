"""From the words of a command line to a command; tyro does it, and what is wrong becomes one line."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import MISSING
from functools import reduce
from operator import or_
from typing import Annotated, Any

import tyro
from tyro.conf import subcommand

from vivi.cli.command import Command, Flag, Group, flags_of
from vivi.runtime.errors import UserError, did_you_mean


class WrongCommand(UserError):
    """Words or flags that make no command."""


Found = tuple[str, type[Command] | Group, list[str]]  # how it is called, what it is, the words after it


def find_command(words: Sequence[str], group: Group, prog: str = "vivi") -> Found:
    """The command, or the group of commands, that the first words name."""
    if not words:
        return prog, group, []
    name, *rest = words
    if name not in group.commands:
        what = f"{prog} has no flag {name}" if name.startswith("-") else f"there is no command '{prog} {name}'"
        raise WrongCommand(f"{what}{did_you_mean(name, group.commands)}; {prog} --help lists the commands")
    found = group.commands[name]
    if isinstance(found, Group):
        return find_command(rest, found, f"{prog} {name}")
    return f"{prog} {name}", found, rest


def defaults_of(kind: type[Command], words: Sequence[str]) -> tuple[Any, list[Flag]]:
    """A command with its defaults, where they depend on the words, and its flags."""
    default = kind.defaults(words)
    return default, [*flags_of(kind, MISSING if default is None else default)]


def parse(words: Sequence[str], group: Group) -> Command:
    """The command that the words make."""
    prog, kind, rest = find_command(words, group)
    if isinstance(kind, Group):
        names = ",".join(kind.commands)
        raise WrongCommand(f"name a command: {prog} {{{names}}} ...; {prog} --help says what each does")
    default, flags = defaults_of(kind, rest)
    check_flags(rest, flags, prog)
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            more = {} if default is None else {"default": default}
            command: Command = tyro.cli(kind, prog=prog, args=rest, **more)
    except SystemExit:
        raise WrongCommand(plain_line(box.getvalue(), prog, kind, flags)) from None
    for flag in flags:
        if flag.default is MISSING and getattr(command, flag.field, None) == ():  # tyro takes none for an answer
            raise WrongCommand(_needs(prog, kind, [flag]))
    return command


def check_flags(words: Sequence[str], flags: Sequence[Flag], prog: str) -> None:
    """Raises for the first word that looks like a flag and is none."""
    known = [name for flag in flags if not flag.positional for name in flag.names]
    switches = [name for flag in flags if not flag.value for name in flag.names]
    for word in words:
        name, given, _ = word.partition("=")
        name = name.replace("_", "-")
        if name in switches and given:
            raise WrongCommand(f"{name} is a switch and takes no value; {prog} --help-all says more")
        if re.match(r"-+[^\d.]", name) and name not in known:
            last = name.strip("-").rpartition(".")[2]
            same_end = [flag for flag in known if re.split(r"--|\.", flag)[-1] == last]  # --lr: --optimiser.lr
            hint = f" (did you mean '{same_end[0]}'?)" if same_end else did_you_mean(name, known)
            raise WrongCommand(f"{prog} has no flag {name[:80]}{hint}; {prog} --help-all lists its flags")


# What tyro and Python say, in plainer words.
_PLAINER = (
    (r"; (For full helptext|Argument helptext).*", ""),
    (r"invalid literal for int\(\) with base 10: ('.*?')", r"\1 is no whole number"),
    (r"could not convert string to float: ('.*?')", r"\1 is no number"),
    (r"Could not find valid parse for arguments: \[(.*)\]", r"\1 cannot be its values"),
    (r"Error parsing (\S+): ", r"\1: "),
    (r"Missing value for argument '(.+?)'\. Expected 1 values", r"\1 needs a value"),
    (r"Missing value for argument '(.+?)'\. Expected (\d+) values", r"\1 needs \2 values"),
    (r"invalid choice ('.*?') for argument '(.+?)'\. Expected one of \((.*?),?\)", r"\2 is \1; it must be one of \3"),
    (r"Unrecognized (or misplaced )?options: (.*)", r"these words are too many: \2"),
)


def plain_line(box: str, prog: str, kind: type[Command], flags: Sequence[Flag]) -> str:
    """What tyro draws in a box, as one line."""
    line = one_line(box)
    missing = line.partition("Missing from ")[2]
    if missing:
        return _needs(prog, kind, [flag for flag in flags if flag.default is MISSING and flag.names[0] in missing])
    for words, plainer in _PLAINER:
        line = re.sub(words, plainer, line)
    for flag in flags:  # as tyro calls it: all its names, or that in the code
        line = re.sub(rf"^({flag.field}|{'/'.join(reversed(flag.names))})(?=[ :])", flag.names[0], line)
    return f"{line}; {prog} --help says more"


def _needs(prog: str, kind: type[Command], flags: Sequence[Flag]) -> str:
    names, example = " and ".join(flag.names[0] for flag in flags), kind.examples[0].partition("  ")[0]
    return f"{prog} needs {names}, for example: {example}; {prog} --help says more"


def one_line(box: str) -> str:
    """The text in a box: its paragraphs, which lines divide, one after the other."""
    rows = [row.strip("│ ") for row in box.splitlines() if not row.startswith(("╭", "╰"))]
    paragraphs = re.split("─+|-{5,}", " ".join(rows))
    if not box.startswith("╭"):  # where there are no such characters, the box begins with its title
        paragraphs = paragraphs[1:]
    return "; ".join(" ".join(part.split()).rstrip(".") for part in paragraphs if part.strip())


def print_completion(words: Sequence[str], group: Group) -> None:
    """Tyro's answer to --tyro-print-completion SHELL: a script for all commands."""
    tyro.cli(_union(group), prog="vivi", args=words)


def _union(group: Group) -> Any:
    """All commands of a group as the type that tyro wants."""
    kinds = []
    for name, kind in group.commands.items():
        if isinstance(kind, Group):
            kinds.append(Annotated[_union(kind), subcommand(name, description=kind.about)])
        else:
            default = kind.defaults([])
            more = {} if default is None else {"default": default}
            kinds.append(Annotated[kind, subcommand(name, **more)])
    return reduce(or_, kinds)
