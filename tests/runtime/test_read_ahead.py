"""Work done ahead: the results of doing it at once, in order and not too far ahead; errors arrive; threads end."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Generator, Iterator

import pytest

from vivi.runtime.read_ahead import in_background, map_ahead


def eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    """Waits for what another thread does."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return condition()


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


# A map in threads.


@pytest.mark.parametrize("threads", [0, 1, 2, 7])
@pytest.mark.parametrize("ahead", [0, 1, 5, 100])
def test_results_are_those_of_map_in_its_order(threads: int, ahead: int) -> None:
    def slow(number: int) -> int:
        time.sleep(random.Random(number).random() / 500)  # later ones may end first
        return number * number

    assert list(map_ahead(slow, range(40), threads, ahead)) == [number * number for number in range(40)]
    assert list(map_ahead(slow, [], threads, ahead)) == []


@pytest.mark.parametrize(("threads", "ahead"), [(1, 0), (1, 3), (2, 3), (4, 10)])
def test_calls_are_made_ahead_but_not_farther_than_told(threads: int, ahead: int) -> None:
    taken: list[int] = []
    done: list[int] = []

    def items() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    results = map_ahead(done.append, items(), threads, ahead)
    time.sleep(0.01)
    assert taken == []  # nothing before the first is asked for
    for number in range(1, 6):
        next(results)
        assert len(taken) == number + ahead
        assert eventually(lambda number=number: len(done) == number + ahead)  # type: ignore[misc]
    time.sleep(0.05)
    assert len(taken) == 5 + ahead
    results.close()


def test_without_threads_nothing_is_done_before_it_is_asked_for() -> None:
    where: list[str] = []
    results = map_ahead(lambda number: where.append(threading.current_thread().name), range(100), 0, 10)
    for number in range(3):
        assert len(where) == number
        next(results)
    assert where == [threading.current_thread().name] * 3
    results.close()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_error_arrives_at_its_place_and_ends_the_map(threads: int) -> None:
    begun: list[int] = []

    def fails_at_seven(number: int) -> int:
        begun.append(number)
        if number == 7:
            raise OSError("seven")
        return number

    results, given = map_ahead(fails_at_seven, itertools.count(), threads, 4), []
    with pytest.raises(OSError, match="seven"):
        for result in results:
            given.append(result)
    assert given == list(range(7))
    assert max(begun) <= 7 + 4
    assert list(results) == []


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_of_the_items_arrives_too(threads: int) -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        list(map_ahead(lambda number: number, items(), threads, 10))


def test_closing_waits_for_calls_under_way_and_begins_no_others() -> None:
    begun: list[int] = []
    ended: list[int] = []
    go_on = threading.Event()

    def blocked(number: int) -> int:
        begun.append(number)
        if number:
            go_on.wait(20)
        ended.append(number)
        return number

    results = map_ahead(blocked, itertools.count(), 2, 50)
    assert next(results) == 0
    assert eventually(lambda: len(begun) == 3)  # 1 and 2 are under way, 48 more wait
    later = threading.Timer(0.1, go_on.set)
    later.start()
    results.close()
    assert sorted(begun) == sorted(ended) == [0, 1, 2]
    assert not _reading()
    later.join()


def _reading() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


def test_a_consumer_that_fails_ends_the_threads() -> None:
    results = map_ahead(lambda number: number, itertools.count(), 3, 10)
    with pytest.raises(KeyboardInterrupt):
        for result in results:
            if result == 4:
                assert _reading()
                raise KeyboardInterrupt
    results.close()
    assert not _reading()


# A generator in a thread.


@pytest.mark.parametrize("ahead", [1, 2, 50])
@pytest.mark.parametrize("count", [0, 1, 30])
def test_the_items_of_a_generator_come_in_order_from_another_thread(ahead: int, count: int) -> None:
    made_in: set[str] = set()

    def items() -> Generator[int, None, None]:
        for number in range(count):
            made_in.add(threading.current_thread().name)
            yield number

    assert list(in_background(items(), ahead)) == list(range(count))
    assert made_in == ({"background_0"} if count else set())


@pytest.mark.parametrize("ahead", [1, 2, 10])
def test_items_are_made_ahead_but_not_farther_than_told(ahead: int) -> None:
    made: list[int] = []

    def items() -> Generator[int, None, None]:
        for number in itertools.count():
            made.append(number)
            yield number

    results = in_background(items(), ahead)
    time.sleep(0.01)
    assert made == []  # nothing before the first is asked for
    for number in range(1, 6):
        assert next(results) == number - 1
        assert eventually(lambda number=number: len(made) >= number + ahead)  # type: ignore[misc]
        time.sleep(0.02)
        assert len(made) <= number + ahead + 1  # those that wait, and the one for which there is no room yet
    results.close()


@pytest.mark.parametrize("error", [OSError("broken"), KeyboardInterrupt("broken")])
def test_an_error_of_the_generator_arrives_after_the_items_before_it(error: BaseException) -> None:
    def items() -> Generator[int, None, None]:
        yield from range(5)
        raise error

    results, given = in_background(items(), 2), []
    with pytest.raises(type(error), match="broken"):
        for item in results:
            given.append(item)
    assert given == list(range(5))
    assert list(results) == []


@pytest.mark.parametrize("taken", [1, 3])
@pytest.mark.parametrize("ahead", [1, 10])
def test_closing_closes_the_generator_in_its_thread_and_waits_for_that(taken: int, ahead: int) -> None:
    closed_in: list[str] = []

    def items() -> Generator[int, None, None]:
        try:
            yield from itertools.count()
        finally:
            time.sleep(0.05)
            closed_in.append(threading.current_thread().name)

    results = in_background(items(), ahead)
    for number in range(taken):
        assert next(results) == number
    results.close()
    assert closed_in == ["background_0"]


def test_closing_waits_for_the_item_that_is_being_made() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def items() -> Generator[int, None, None]:
        yield 0
        begun.set()
        go_on.wait(20)
        ended.set()
        yield 1

    results = in_background(items(), 5)
    assert next(results) == 0 and begun.wait(20)
    later = threading.Timer(0.1, go_on.set)
    later.start()
    results.close()
    assert ended.is_set()
    later.join()


def test_what_was_never_asked_for_starts_no_thread() -> None:
    before = threading.active_count()
    results = in_background((number for number in range(9)), 2)
    assert threading.active_count() == before
    results.close()
