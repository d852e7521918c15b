"""What processes tell each other: the values of all, sums, rank 0's word; and how they end together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from runs import free_port

from vivi.runtime.distributed import World, only_rank_0_explains
from vivi.runtime.errors import UserError

pytestmark = pytest.mark.timeout(120)
ALONE = World(torch.device("cpu"))

# Takes part in everything, and prints what it got.
_TALK = """
import json, sys
import torch
from vivi.runtime.distributed import join_world
from vivi.runtime.errors import UserError

with join_world("cpu") as world:
    rank = world.rank
    tensors = [torch.full((2,), 1.0 + rank), torch.tensor([[10.0 * rank]])]
    world.all_reduce(tensors)
    told = [torch.full((3,), float(rank)), torch.arange(6.0).view(2, 3).T + 100 * rank]
    world.broadcast(told)
    with_gradient = torch.ones(1, 2, requires_grad=True) * rank
    gathered = world.all_gather(with_gradient)
    found = {
        "all_gather": [gathered.tolist(), gathered.requires_grad],
        "all_gather_object": world.all_gather_object({"rank": rank}),
        "all_reduce": [tensor.tolist() for tensor in tensors],
        "broadcast": [tensor.tolist() for tensor in told],
        "broadcast_object": world.broadcast_object(f"from {rank}"),
        "any": [world.any(False), world.any(rank == 1), world.any(True)],
        "share_of": list(world.share_of(6)),
        "together": world.together(lambda: f"mine, {rank}"),
        "on_rank_0": world.on_rank_0(lambda: f"only {rank}"),
    }
    world.check_same(lambda: {"torch": "1"})
    print(json.dumps(found), flush=True)

    def act():
        if sys.argv[1] == str(rank):
            raise {"user": UserError, "bug": ZeroDivisionError}[sys.argv[2]]("it went wrong\\nin two lines")

    try:
        if sys.argv[2] == "claims":
            world.check_same(lambda: {"torch": f"version {rank}"})
        else:
            world.together(act)
    except UserError as error:
        sys.exit(f"error: {error}")
print("not reached")
"""


def talk(*words: str) -> list[tuple[int, dict[str, Any], str]]:
    """Of two processes: exit code, what they found, what they printed as errors."""
    port = free_port()
    running = []
    for rank in range(2):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in place.items()}}
        command = [sys.executable, "-c", _TALK, *words]
        running.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    outcomes = []
    for process in running:
        output, errors = process.communicate(timeout=60)
        outcomes.append((process.returncode, json.loads(output), errors))
    return outcomes


def test_values_sums_and_the_word_of_rank_0_reach_every_process_and_a_failure_ends_all() -> None:
    outcomes = talk("1", "user")
    for rank, (code, found, errors) in enumerate(outcomes):
        assert found == {
            "all_gather": [[[0.0, 0.0], [1.0, 1.0]], False],
            "all_gather_object": [{"rank": 0}, {"rank": 1}],
            "all_reduce": [[3.0, 3.0], [[10.0]]],
            "broadcast": [[0.0] * 3, [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]],
            "broadcast_object": "from 0",
            "any": [False, True, True],
            "share_of": [0, 1, 2] if rank == 0 else [3, 4, 5],
            "together": f"mine, {rank}",
            "on_rank_0": "only 0" if rank == 0 else None,
        }
        assert code == 1 and "Traceback" not in errors
    assert "error: process 1 of 2, on " in outcomes[0][2] and outcomes[0][2].endswith(": it went wrong\n")
    assert "error" not in outcomes[1][2], "rank 0 alone explains"


def test_where_rank_0_fails_it_says_why_and_the_others_end_silently() -> None:
    (first, _, said), (second, _, silent) = talk("0", "user")
    assert (first, second) == (1, 1)
    assert "error: it went wrong" in said and "error" not in silent


def test_a_bug_keeps_its_traceback_where_it_happened() -> None:
    (first, _, said), (second, _, trace) = talk("1", "bug")
    assert (first, second) == (1, 1)
    assert "ZeroDivisionError: it went wrong" in trace and "Traceback" in trace
    assert "error: process 1 of 2, on " in said and "Traceback" not in said


def test_claims_that_differ_end_all_processes() -> None:
    (first, _, said), (second, _, silent) = talk("", "claims")
    assert (first, second) == (1, 1)
    assert ": torch is version 1 here, and version 0 in process 0" in said and "error" not in silent


def test_a_process_alone_has_nobody_to_tell() -> None:
    values = torch.ones(2, 3, requires_grad=True)
    gathered = ALONE.all_gather(values)
    assert torch.equal(gathered, values) and not gathered.requires_grad
    tensor = torch.ones(2)
    ALONE.all_reduce([tensor])
    ALONE.broadcast([tensor])
    assert tensor.tolist() == [1, 1]
    assert ALONE.all_gather_object("x") == ["x"] and ALONE.broadcast_object(None) is None
    assert ALONE.any(True) and not ALONE.any(False)
    assert ALONE.together(lambda: 3) == ALONE.on_rank_0(lambda: 3) == 3
    ALONE.check_same(lambda: pytest.fail("nobody asks"))
    for action in (ALONE.together, ALONE.on_rank_0):
        with pytest.raises(UserError, match="as it is"):
            action(lambda: fail("as it is"))


def fail(message: str) -> None:
    raise UserError(message)


@pytest.mark.parametrize(("size", "cores"), [(1, 5), (2, 4), (3, 12), (4, 4)])
def test_every_core_is_computed_by_a_single_process(size: int, cores: int) -> None:
    shares = [World(torch.device("cpu"), rank, size).share_of(cores) for rank in range(size)]
    assert [core for share in shares for core in share] == list(range(cores))
    assert len({len(share) for share in shares}) == 1


def test_cores_that_cannot_be_shared_evenly_are_refused() -> None:
    with pytest.raises(UserError, match="3 processes cannot share 4 cores evenly"):
        World(torch.device("cpu"), 0, 3).share_of(4)


def test_what_goes_wrong_in_every_process_is_explained_by_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="why"), only_rank_0_explains():
        raise UserError("why")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as caught, only_rank_0_explains():
        raise UserError("why")
    assert caught.value.code == 1
    with pytest.raises(ZeroDivisionError), only_rank_0_explains():
        raise ZeroDivisionError
