"""Work done before its results are needed: a map in threads, and a generator in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int, ahead: int
) -> Generator[Result, None, None]:
    """`map(function, items)` in threads: results in order, with up to `ahead` more under way. Without threads, it is
    `map`.

    Closing the generator waits for the calls under way and begins no others. An error of the function is raised in
    the place of its result, one of `items` at once.
    """
    if not threads:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(threads, "read-ahead")
    try:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def in_background(items: Generator[Item, None, None], ahead: int) -> Generator[Item, None, None]:
    """The items of a generator that runs in a thread, with up to `ahead` of them, at least one, waiting.

    Closing this generator closes the other one, in its thread, and waits for that.
    """
    results: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(ahead)
    stopped = threading.Event()

    def put(item: Item | None, error: BaseException | None = None) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                results.put((item, error), timeout=0.1)
                return

    def work() -> None:
        try:
            for item in items:
                put(item)
                if stopped.is_set():
                    break
            put(None, StopIteration())
        except BaseException as error:
            put(None, error)
        finally:
            items.close()

    thread = threading.Thread(target=work, name="background", daemon=True)
    thread.start()
    try:
        while True:
            item, error = results.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]  # None only beside an error
    finally:
        stopped.set()
        thread.join()
