"""The console of commands that take long."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console


class Patient(Console):
    """A console whose reader may leave, or whose disk may be full: what is long goes on without it."""

    @classmethod
    def like(cls, console: Console) -> Patient:
        return cls(file=console.file, width=console.width, markup=False, highlight=False)

    def print(self, *objects: Any, **style: Any) -> None:
        try:
            super().print(*objects, **style)
        except OSError:
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
