"""Work done before its results are needed: a map in threads, and a generator in a thread of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int, ahead: int
) -> Generator[Result, None, None]:
    """`map(function, items)` in threads: results in order, with up to `ahead` more under way. Without threads, it is
    `map`.

    Closing the generator waits for the calls under way and begins no others. An error of the function is raised in
    the place of its result; an error of `items` is raised at once.
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
    """The items of a generator that runs in a thread of its own, with up to `ahead` of them, at least one, waiting.

    Closing this generator closes the other one, in its thread, and waits for that.
    """
    pool, end = ThreadPoolExecutor(1, "background"), object()
    # One more than are waiting: it is being made.
    waiting: deque[Future[Any]] = deque(pool.submit(next, items, end) for _ in range(ahead + 1))
    try:
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(next, items, end))
            yield item
    finally:
        for future in waiting:
            future.cancel()
        pool.submit(items.close)
        pool.shutdown()
