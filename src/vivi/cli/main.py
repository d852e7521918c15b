"""The command `vivi`."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from rich.text import Text

import vivi
from vivi.cli.answers import Embed, Search, Select
from vivi.cli.bench import Bench, run_benchmark
from vivi.cli.classify import CLASSIFY
from vivi.cli.command import Command, Group
from vivi.cli.doctor import Doctor
from vivi.cli.evaluate import EVALUATE
from vivi.cli.export import Export
from vivi.cli.help import print_command, print_group
from vivi.cli.parse import WrongCommand, defaults_of, find_command, parse, print_completion
from vivi.cli.prepare import Inspect, Prepare, Synthesize
from vivi.cli.report import Demo, Recipes, Report
from vivi.cli.train import Train
from vivi.runtime.console import Output, SafeConsole, guard_output
from vivi.runtime.errors import UserError, first_line

# What only one command needs, and the flags do not, is imported where it runs: `vivi --help` answers at once.

COMMANDS = Group(
    "Image representations from unlabelled video.",
    (
        "vivi prepare /disk/videos --out corpus/",
        "vivi train auto --corpus corpus/ --out run/",
        "vivi evaluate linear --encoder run/ --data labelled/ --out results/",
        "vivi report results/",
    ),
    {
        "prepare": Prepare,
        "inspect": Inspect,
        "recipes": Recipes,
        "train": Train,
        "evaluate": EVALUATE,
        "report": Report,
        "embed": Embed,
        "search": Search,
        "select": Select,
        "classify": CLASSIFY,
        "export": Export,
        "synthesize": Synthesize,
        "demo": Demo,
        "doctor": Doctor,
        "bench": Bench,
    },
)


@dataclass
class Common:
    """The flags of every command, wherever they stand in it."""

    quiet: bool = False
    verbose: bool = False
    json: bool = False
    help: bool = False
    help_all: bool = False
    version: bool = False

    def take_from(self, words: Sequence[str]) -> list[str]:
        """Sets those that are among the words; returns the other words."""
        short = {"-q": "quiet", "-v": "verbose", "-h": "help"}
        flags = {**short, **{f"--{name.replace('_', '-')}": name for name in vars(self)}}
        for word in words:
            if word in flags:
                setattr(self, flags[word], True)
        return [word for word in words if word not in flags]


def run() -> None:
    """Runs a command; what is wrong is said in one line. What is so for all of torchrun's processes, rank 0 says."""
    output = guard_output()
    errors = SafeConsole(stderr=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    first = os.environ.get("RANK", "0") == "0"
    common = Common()
    command: Command | None = None
    try:
        if sys.argv[1:2] == ["bench"]:  # has its own flags
            run_benchmark(sys.argv[2:])
            return
        words = common.take_from(sys.argv[1:])
        console = SafeConsole(stderr=common.json, reticent=common.quiet)
        if common.verbose and first:
            _explain(errors)
        with _printed(output):
            if _print_about(words, common):
                return
        command = parse(words, COMMANDS)
        with _printed(output) if command.only_prints else nullcontext():
            facts = command.run(SafeConsole(quiet=common.json) if command.only_prints else console)
        console.print_last()
        if common.json and first:
            with _printed(output):
                print(json.dumps(facts, indent=2, default=str))
    except UserError as error:
        if command is not None or first:
            line = " ".join(str(error).splitlines())  # names of files may have several
            errors.print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)
        sys.exit(2 if isinstance(error, WrongCommand) else 1)
    except KeyboardInterrupt:
        if first:
            goes_on = command is not None and command.goes_on
            errors.print("stopped; the same command goes on from here" if goes_on else "stopped")
        sys.exit(130)
    except Exception as error:
        if common.verbose:
            raise
        what = f"error: unexpected {type(error).__name__}: {first_line(error)}"
        errors.print(f"{what}; where it happened: {_keep_traceback()}, or say -v", soft_wrap=True)
        sys.exit(1)


def _print_about(words: list[str], common: Common) -> bool:
    """Prints the version, the help or what a shell needs to complete commands, if one of them is asked for."""
    console = SafeConsole()
    asked = True
    if common.version:
        console.print(f"vivi {vivi.__version__}, torch {version('torch')}, Python {sys.version.split()[0]}")
    elif any(word.startswith("--tyro-") for word in words):
        print_completion(words, COMMANDS)
    elif common.help or common.help_all:
        prog, kind, rest = find_command(words, COMMANDS)
        if isinstance(kind, Group):
            print_group(prog, kind, console)
        else:
            print_command(prog, kind, defaults_of(kind, rest)[1], common.help_all, console)
    else:
        asked = False
    return asked


def _explain(errors: SafeConsole) -> None:
    """From now on, prints what the package logs: what it decides, and why."""

    class Printed(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.print(record.getMessage(), style="dim", soft_wrap=True)

    logging.getLogger("vivi").addHandler(Printed())
    logging.getLogger("vivi").setLevel(logging.INFO)


def _keep_traceback() -> Path:
    """Writes the traceback of the present exception to a file."""
    with tempfile.NamedTemporaryFile("w", prefix="vivi-", suffix=".txt", delete=False) as file:
        file.write(f"{sys.argv}\n{traceback.format_exc()}")
    return Path(file.name)


@contextmanager
def _printed(output: Output) -> Iterator[None]:
    """For what is only printed, and lost where it cannot be; a reader who leaves has seen enough."""
    try:
        yield
    finally:
        output.flush()
        if output.failure and not isinstance(output.failure, BrokenPipeError):
            raise UserError(f"the output cannot be written: {output.failure.strerror}") from None
