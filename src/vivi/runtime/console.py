"""What every command prints through. Names of files cannot control the terminal, and a command goes on when whoever
reads its output leaves."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"
# What a terminal would obey, or show in another order: control characters except tab and newline, bidirectional
# embeddings and overrides, other ends of lines; and half characters, as in names of files that are not text.
_SHOWN = {
    **{code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"},  # their pictures: ␛ for escape
    0x7F: "\N{SYMBOL FOR DELETE}",
    **dict.fromkeys(
        (*range(0x80, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)), _UNKNOWN
    ),
}


def harmless(text: str) -> str:
    """The text with a visible sign in the place of each character that a terminal would obey."""
    return text.translate(_SHOWN)


WARNING, HINT = "yellow", "dim"  # styles of lines


class SafeConsole(Console):
    """A console that shows whatever text it is given as it is: control characters as signs, and neither markup nor
    emoji in the names of files. A reticent one shows warnings, and keeps the last of the other lines."""

    def __init__(self, reticent: bool = False, **options: Any) -> None:
        if reticent:
            options["force_terminal"] = False  # no moving bars
        super().__init__(markup=False, highlight=False, emoji=False, **options)
        self.reticent = reticent
        self._last: tuple[tuple[Any, ...], dict[str, Any]] = (), {}

    def print(self, *objects: Any, **how: Any) -> None:
        if not self.reticent or how.get("style") == WARNING:
            super().print(*objects, **how)
        elif how.get("style") != HINT:
            self._last = objects, how

    def print_last(self) -> None:
        """Prints the line that a reticent console has kept."""
        objects, how = self._last
        if objects:
            super().print(*objects, **how)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def warn(console: Console, line: str) -> None:
    """Prints a line that should be seen."""
    console.print(line, style=WARNING, soft_wrap=True)


def explain(line: str) -> None:
    """Says what was decided and why, to whoever wants to know: vivi -v, or a handler of the logger `vivi`."""
    logging.getLogger("vivi").info("%s", line)


def hint(console: Console, line: str) -> None:
    """Prints a line about what to do next, which goes unsaid where only the outcome is wanted."""
    console.print(line, style=HINT, soft_wrap=True)


class Output:
    """Standard output or error whose reader may leave, or whose disk may be full: long work goes on without it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failure: OSError | None = None
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without × is no reason to stop

    def write(self, text: str) -> int:
        return self._attempt(self.stream.write, text) or 0

    def flush(self) -> None:
        self._attempt(self.stream.flush)

    def _attempt(self, action: Callable[..., int | None], *words: str) -> int | None:
        try:
            return action(*words)
        except OSError as error:
            # From now on all that is written, also by libraries and other processes, goes nowhere.
            self.failure = self.failure or error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())
            os.close(nowhere)
            return None

    def __getattr__(self, name: str) -> Any:
        """Whatever else is asked of a stream."""
        return getattr(self.stream, name)


def guard_output() -> Output:
    """Puts an Output in the place of standard output and error; returns that of standard output."""
    output = Output(sys.stdout or open(os.devnull, "w"))  # noqa: SIM115 (for as long as the process lives)
    sys.stdout = output
    if sys.stderr is not None:
        sys.stderr = Output(sys.stderr)
    return output
