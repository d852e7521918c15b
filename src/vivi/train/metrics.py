"""The numbers of a run over its steps: metrics.jsonl, and the same for TensorBoard.

    run/metrics.jsonl      one JSON object per line, "step" first; a number that is not finite is null
    run/tensorboard/       one event file per start of the run

A number reads back from metrics.jsonl with the bits it was written with. A run that was killed and resumed has the
same lines as one that was not, but for the fields named in TIMING.
"""

from __future__ import annotations

import io
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from vivi.runtime.errors import UserError
from vivi.runtime.storage import LARGE, fsync_file, read_file, storage, write_atomically

# The only fields that may differ between two runs of one recipe.
TIMING = ("frames_per_second", "seconds")


class MetricsLog:
    """Writes a run's numbers and pictures; one process of a run has one.

    `restored_step` is the step of the checkpoint the run goes on from, -1 for a new run: what was logged after it,
    and a line that was torn, is cut, as those steps are run again. TensorBoard's events are not written by torch's
    SummaryWriter, which works in a thread of its own: there a full disk ends in a traceback, and the run goes on.
    """

    def __init__(self, run: Path, restored_step: int) -> None:
        path = run / "metrics.jsonl"
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        with storage(path):
            (run / "tensorboard").mkdir(parents=True, exist_ok=True)
            _cut(path, restored_step)
            self._lines = open(path, "ab", buffering=0)  # noqa: SIM115 - closed at the end
            self._events = open(run / "tensorboard" / name, "xb", buffering=0)  # noqa: SIM115
        self._write_event(0, file_version="brain.Event:2")
        # The step on a start tells TensorBoard to forget what other files have from there on.
        self._write_event(restored_step + 1, session_log=SessionLog(status=SessionLog.START))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Adds the numbers of a step."""
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        _append(self._lines, json.dumps({"step": step, **finite}, allow_nan=False).encode() + b"\n")
        parts = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write_event(step, summary=Summary(value=parts))

    def picture(self, name: str, step: int, picture: NDArray[np.uint8]) -> None:
        """Shows a picture (height, width, 3) in TensorBoard."""
        from torch.utils.tensorboard.summary import image  # here: it takes a while

        self._write_event(step, summary=image(name, picture, dataformats="HWC"))

    def _write_event(self, step: int, **content: Any) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(Event(wall_time=time.time(), step=step, **content).SerializeToString())
        _append(self._events, record.getvalue())

    def sync(self) -> None:
        """Puts what was logged on the disk: before each checkpoint, so that none is ahead of the lines."""
        with storage(Path(self._lines.name)):
            fsync_file(self._lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._events.close()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, in order; a torn line is left out."""
    path = run / "metrics.jsonl"
    try:
        return [values for _, values in _lines_of(path)]
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); is {run} the --out of a vivi train?") from None


def _lines_of(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The lines with what they hold; one that is torn or something else is left out."""
    for line in read_file(path, LARGE).splitlines(keepends=True):
        with suppress(ValueError, RecursionError):
            values = json.loads(line)
            if line.endswith(b"\n") and isinstance(values, dict) and isinstance(values.get("step"), int):
                yield line, values


def _cut(path: Path, last_step: int) -> None:
    """Removes torn lines and those of later steps; the others stay as they are, byte by byte."""
    if path.exists():
        write_atomically(path, b"".join(line for line, values in _lines_of(path) if values["step"] <= last_step))


def _append(file: io.FileIO, content: bytes) -> None:
    """Writes all of it: an unbuffered file may take a part and only refuse the rest."""
    with storage(Path(str(file.name))):
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]
