"""The processes that compute a step together, one per GPU; torchrun starts them.

In a single process, every method of World returns at once.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vivi.runtime.console import explain
from vivi.runtime.errors import UserError, first_line
from vivi.runtime.signals import signals_go_to

T = TypeVar("T")
Claims = Mapping[str, Any]  # what must be the same in all processes, by name

# Seconds. torchrun ends all processes as soon as one ends, and rank 0 is still to say why.
_ERROR_DELAY = 1.0
_RENDEZVOUS_TIMEOUT = timedelta(minutes=10)
# Building the index of a large corpus, which the others wait for, takes minutes.
_COLLECTIVE_TIMEOUT = timedelta(hours=2)
_COUNTS = range(1, 1_000_000)  # of processes
# A message to another process that did not get through; gloo has no exception of its own.
_LOST = re.compile(r"gloo/(.|\n)*(Connection (closed|reset) by peer|Broken pipe|[Tt]imed out)")


@dataclass(frozen=True)
class World:
    """This process among its peers."""

    device: torch.device
    rank: int = 0
    size: int = 1

    def share_of(self, cores: int) -> range:
        """Which cores of the batch this process computes."""
        if cores % self.size:
            remedy = "start another number of processes, or set --batch.cores"
            raise UserError(f"{self.size} processes cannot share {cores} cores evenly: {remedy}")
        share = cores // self.size
        return range(self.rank * share, (self.rank + 1) * share)

    def all_gather(self, values: Tensor) -> Tensor:
        """The values of all processes, one after the other along the first dimension; no gradient flows."""
        if self.size == 1:
            return values.detach()
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.detach().contiguous())
        return torch.cat(parts)

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by its sum over the processes, in one message."""
        if self.size == 1 or not tensors:
            return
        message = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(message)
        for tensor, total in zip(tensors, message.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def all_gather_object(self, value: T) -> list[T]:
        """The values of all processes, whatever they are."""
        if self.size == 1:
            return [value]
        values = [value] * self.size
        dist.all_gather_object(values, value)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process. The host waits for the other hosts, not for the GPU."""
        if self.size == 1:
            return flag
        count = torch.tensor(float(flag))
        dist.all_reduce(count)
        return bool(count.item() > 0)

    def broadcast_object(self, value: T) -> T:
        """Rank 0's value, whatever it is."""
        return self.all_gather_object(value)[0]

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replaces each tensor by that of rank 0."""
        for tensor in tensors if self.size > 1 else ():
            message = tensor.detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(message, 0)
            if self.rank > 0:
                tensor.copy_(message)

    def together(self, action: Callable[[], T]) -> T:
        """What this process gets from an action that every process takes; where one of them fails, all end, and rank
        0 says why. The action itself must not wait for the others."""
        failure: Exception | None = None
        try:
            result = action()
        except Exception as error:
            failure = error
        why = f"on {socket.gethostname()}: {first_line(failure)}" if failure else ""
        reasons = dict(enumerate(self.all_gather_object(why)))
        if not any(reasons.values()):
            return result
        if failure is not None and (self.rank == 0 or not isinstance(failure, UserError)):
            raise failure
        if self.rank > 0:
            sys.exit(1)
        number, why = next((number, why) for number, why in reasons.items() if why)
        raise UserError(f"process {number} of {self.size}, {why}")

    def on_rank_0(self, action: Callable[[], T]) -> T | None:
        """What rank 0 gets from an action that the others wait for; where it fails, all end, and rank 0 says why."""
        return self.together(lambda: action() if self.rank == 0 else None)

    def check_same(self, claims: Callable[[], Claims]) -> None:
        """Ends all processes where one of them claims something else than rank 0."""
        if self.size > 1:
            own = self.together(claims)
            first = self.broadcast_object(own)
            self.together(lambda: compare_claims(own, first))


def compare_claims(own: Claims, first: Claims) -> None:
    """Raises where a process claims something else than rank 0."""
    for what, value in first.items():
        if own.get(what) != value:
            raise UserError(f"{what} is {own.get(what)} here, and {value} in process 0: give all of them the same")


@contextmanager
def join_world(device: str) -> Iterator[World]:
    """Meets the other processes, if torchrun has started any. `device` is cpu, cuda, cuda:N, mps, ... or auto."""
    size = _variable("WORLD_SIZE", _COUNTS)
    rank, local = _variable("RANK", range(size)), _variable("LOCAL_RANK", range(size))
    with only_rank_0_explains():
        own = choose_device(device, local)
    if size == 1:
        yield World(own)
        return
    if own.type == "cuda":
        torch.cuda.set_device(own)
    _init_process_group("cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo", rank, size)
    quiet = False
    try:
        yield World(own, rank, size)
    except SystemExit:  # of a process that leaves it to rank 0 to say why
        quiet = True
        raise
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not _LOST.search(str(error)):
            raise
        raise UserError(
            f"another process of this run has ended or cannot be reached ({first_line(error)[:200]}); "
            "what it printed says why; the same command goes on from the last checkpoint"
        ) from None
    finally:
        dist.destroy_process_group()
        if quiet:
            time.sleep(_ERROR_DELAY)


def _variable(name: str, allowed: range) -> int:
    """A number that torchrun sets in the environment, by default the least that is allowed."""
    text = os.environ.get(name, str(allowed[0]))
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) not in allowed:
        number = f"it must be a number from {allowed[0]} to {allowed[-1]}, as torchrun sets it"
        raise UserError(f"the environment variable {name} is {text[:80]!r}; {number}")
    return int(text)


def _init_process_group(backend: str, rank: int, size: int) -> None:
    """Waits for the other processes, and makes a group of all."""
    try:
        # Python's own handlers would wait until C++ returns.
        with signals_go_to(signal.SIG_DFL, signal.SIGINT, signal.SIGTERM):
            store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=_RENDEZVOUS_TIMEOUT))
            group = dist.PrefixStore("default_pg", store)
            dist.init_process_group(backend, store=group, rank=rank, world_size=size, timeout=_COLLECTIVE_TIMEOUT)
            store.set_timeout(_COLLECTIVE_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise UserError(
            f"process {rank} did not meet the others: {size} processes are expected at {address} within "
            f"{_RENDEZVOUS_TIMEOUT.total_seconds() / 60:g} minutes ({first_line(error)[:200]}); check that all are "
            "started, that WORLD_SIZE, MASTER_ADDR and MASTER_PORT are the same for all, and that no firewall is "
            "between them"
        ) from None


@contextmanager
def only_rank_0_explains() -> Iterator[None]:
    """For what goes wrong in every process alike: rank 0 raises it, the others end."""
    try:
        yield
    except UserError:
        if os.environ.get("RANK", "0") != "0":
            sys.exit(1)
        raise


def processes_here() -> int:
    """How many processes of the run share this machine."""
    return _variable("LOCAL_WORLD_SIZE", _COUNTS)


def choose_device(name: str, local: int = 0) -> torch.device:
    """The device of this name; auto: a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        explain(f"device {name}: " + ("torch finds a GPU" if name == "cuda" else "torch finds no GPU"))
    try:
        device = torch.device(name)
        if device.type not in ("cpu", "cuda", "mps", "xpu"):
            raise RuntimeError("it is no kind of device to compute on")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("this machine has no CUDA device, or torch cannot use it")
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", local)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        lists_all = str(error).startswith("Expected one of")  # every device that torch was ever built for
        reason = "" if lists_all else f" ({first_line(error)})"
        raise UserError(f"--device {name} cannot be used{reason}; give auto, cpu, cuda, cuda:1, ...") from None
    return device
