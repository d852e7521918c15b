"""Ctrl-C and SIGTERM: who they go to, and how the first one ends a run between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def signals_go_to(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Inside, these signals go to the handler. Outside the main thread, where none can be set, nothing changes."""
    settable = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if settable}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


class StopRequest:
    """Set by the first Ctrl-C or SIGTERM; a second one ends the process at once."""

    def __init__(self) -> None:
        self.requested = False
        self._handled = ExitStack()

    def _request(self, *_: object) -> None:
        self.requested = True
        self._handled.close()

    def __enter__(self) -> StopRequest:
        self._handled.enter_context(signals_go_to(self._request, signal.SIGINT, signal.SIGTERM))
        return self

    def __exit__(self, *_: object) -> None:
        self._handled.close()
