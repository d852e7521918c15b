"""The command `vivi`."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from typing import Annotated, Any

import tyro
from rich.text import Text
from tyro.conf import subcommand

from vivi.cli.answers import Embed, Search, Select
from vivi.cli.bench import run_benchmark
from vivi.cli.classify import CLASSIFY, Fit
from vivi.cli.classify import Run as ClassifyRun
from vivi.cli.evaluate import EVALUATE, Check, Detection, Vtab, evaluate_commands
from vivi.cli.export import Export
from vivi.cli.prepare import Inspect, Prepare, Synthesize
from vivi.cli.report import Demo, Recipes, Report
from vivi.cli.train import Train, recipe_options
from vivi.runtime.console import Output, SafeConsole, guard_output
from vivi.runtime.errors import UserError

# What only one command needs, and the flags do not, is imported where it runs: `vivi --help` answers at once.


def commands(arguments: Sequence[str]) -> Any:
    """The commands; the flags of train are the fields of the recipe it names, with that recipe's values."""
    options = recipe_options(arguments[1:] if arguments[:1] == ["train"] else [])
    return (
        Annotated[Prepare, subcommand("prepare")]
        | Annotated[Inspect, subcommand("inspect")]
        | Annotated[Synthesize, subcommand("synthesize")]
        | Annotated[Recipes, subcommand("recipes")]
        | Annotated[Train, subcommand("train", default=Train(**options, out=tyro.MISSING))]
        | Annotated[evaluate_commands(arguments), subcommand("evaluate", description=EVALUATE)]
        | Annotated[Report, subcommand("report")]
        | Annotated[Embed, subcommand("embed")]
        | Annotated[Search, subcommand("search")]
        | Annotated[Select, subcommand("select")]
        | Annotated[
            Annotated[Fit, subcommand("fit")] | Annotated[ClassifyRun, subcommand("run")],
            subcommand("classify", description=CLASSIFY),
        ]
        | Annotated[Export, subcommand("export")]
        | Annotated[Demo, subcommand("demo")]
    )


def run() -> None:
    """Runs a command; what is wrong is said in one line. What is so for all of torchrun's processes, rank 0 says."""
    output = guard_output()
    console, errors = SafeConsole(), SafeConsole(stderr=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    first = os.environ.get("RANK", "0") == "0"
    command: Any = None
    try:
        if sys.argv[1:2] == ["bench"]:
            run_benchmark(sys.argv[2:])
            return
        with _printed(output):  # the help
            command = _parse(commands(sys.argv[1:]))
        with _printed(output) if isinstance(command, Recipes | Check) else nullcontext():
            command.run(console)
    except UserError as error:
        if command is not None or first:
            line = " ".join(str(error).splitlines())  # names of files may have several
            errors.print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)
        sys.exit(2 if isinstance(error, WrongCommand) else 1)
    except KeyboardInterrupt:
        resumes = isinstance(command, ClassifyRun | Embed | Prepare | Synthesize | Train | Vtab | Detection | Demo)
        if first:
            errors.print("stopped; the same command goes on from here" if resumes else "stopped")
        sys.exit(130)


class WrongCommand(UserError):
    """Words or flags that make no command."""


def _parse(kinds: Any) -> Any:
    """The command with its flags. Where they are wrong, tyro draws a box, of which one line is taken."""
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            return tyro.cli(kinds, prog="vivi", description="Image representations from unlabelled video.")
    except SystemExit as end:
        if not end.code:
            raise
        raise WrongCommand(one_line(box.getvalue())) from None


# What tyro and Python say, in plainer words.
_PLAINER = (
    (r"invalid literal for int\(\) with base 10: ('.*?')", r"\1 is no whole number"),
    (r"could not convert string to float: ('.*?')", r"\1 is no number"),
    (r" \(applied to vivi[\w -]*\)", ""),
    (r" Arguments are applied to the directly preceding subcommand, so ordering can matter", ""),
)


def one_line(box: str) -> str:
    """The text in a box: its paragraphs, which lines divide, one after the other."""
    rows = [row.strip("│ ") for row in box.splitlines() if not row.startswith(("╭", "╰"))]
    paragraphs = re.split("─+", " ".join(rows))
    line = "; ".join(" ".join(part.split()).rstrip(".") for part in paragraphs if part.strip())
    for words, plainer in _PLAINER:
        line = re.sub(words, plainer, line)
    return line


@contextmanager
def _printed(output: Output) -> Iterator[None]:
    """For what is only printed, and lost where it cannot be; a reader who leaves has seen enough."""
    try:
        yield
    finally:
        output.flush()
        if output.failure and not isinstance(output.failure, BrokenPipeError):
            raise UserError(f"the output cannot be written: {output.failure.strerror}") from None
