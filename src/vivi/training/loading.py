"""Where the pictures of a run come from: decoded here or by the GPU, as it goes along or once and for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from rich.console import Console

from vivi.batches.frames import FrameStream, decode, decode_there
from vivi.batches.image_stream import ImageStream
from vivi.batches.loader import Loader
from vivi.batches.resident import ResidentLoader, Store, decoded_bytes, frames_in_use, load_store
from vivi.errors import UserError
from vivi.machine import available_cores, available_memory
from vivi.progress import ProgressLine
from vivi.recipes import Recipe
from vivi.training.data import Data, image_stream, video_stream
from vivi.training.distributed import World, processes_here, said_once
from vivi.training.feed import AnyLoader, Batches
from vivi.training.machine import Machine

# More threads wait for Python's lock, and make the one that feeds the GPU wait: 16 are a third slower than 4.
MOST_THREADS = 4
# Of the memory that is free: what training itself needs comes later.
_SHARE_OF_GPU, _SHARE_OF_HOST = 0.25, 0.5
_TRIED = 512  # frames, to see who decodes faster


@contextmanager
def open_batches(
    data: Data, recipe: Recipe, machine: Machine, world: World, start: int, console: Console
) -> Iterator[Batches]:
    """The batches of a run from step `start` on, for the cores of this process."""
    with ExitStack() as stack:
        with said_once():
            videos = _video_loader(data, recipe, machine, world, start, console)
        there = world.device.type == "cuda" and machine.decode != "cpu"
        images = _loader(image_stream(data, recipe, encoded=there), recipe, machine, world, start)
        for loader in (videos, images):
            if loader is not None:
                stack.enter_context(loader)
        labels = torch.from_numpy(data.labelled.labels) if data.labelled else torch.zeros(0, dtype=torch.int64)
        yield Batches(videos, images, labels)


def _video_loader(
    data: Data, recipe: Recipe, machine: Machine, world: World, start: int, console: Console
) -> AnyLoader | None:
    stream = video_stream(data, recipe, encoded=world.device.type == "cuda" and machine.decode != "cpu")
    if isinstance(stream, FrameStream):
        stream.encoded = gpu_decodes(stream, machine, world.device, console)
        store = keep_resident(stream, recipe, machine, world, recipe.steps - start, console)
        if store is not None:
            mine = world.cores(recipe.batch.cores)
            return ResidentLoader(stream, store, mine.start, mine.stop, start, recipe.steps)
    return _loader(stream, recipe, machine, world, start)


def _loader(
    stream: FrameStream | ImageStream | None, recipe: Recipe, machine: Machine, world: World, start: int
) -> Loader | None:
    if stream is None:
        return None
    mine = world.cores(recipe.batch.cores)
    threads, pin = reading_threads(machine), world.device.type == "cuda"
    return Loader(stream, mine.start, mine.stop, threads, start, recipe.steps, pin=pin)


def reading_threads(machine: Machine) -> int:
    """Threads that read, and decode where the GPU does not, while training."""
    return machine.threads or min(MOST_THREADS, max(1, available_cores() // processes_here()))


# --- who decodes ---


@dataclass(frozen=True)
class Rates:
    """Frames a second that are decoded."""

    gpu: float
    threads: float


def gpu_decodes(stream: FrameStream, machine: Machine, device: torch.device, console: Console) -> bool:
    """Whether the GPU is to decode the frames: where there is one, if it is faster than the threads."""
    if device.type != "cuda" or machine.decode == "cpu":
        return False
    rates = decoding_rates(stream, device, reading_threads(machine))
    if machine.decode == "gpu":
        if rates.gpu == 0:
            raise UserError("--decode gpu: the GPU, or this torchvision, cannot decode JPEG; leave it out")
        return True
    faster = rates.gpu > rates.threads
    who = "the GPU" if faster else f"{reading_threads(machine)} threads"
    console.print(
        f"frames are decoded by {who} (GPU {rates.gpu:,.0f}/s, threads {rates.threads:,.0f}/s)", soft_wrap=True
    )
    return faster


def decoding_rates(stream: FrameStream, device: torch.device, threads: int) -> Rates:
    """Tried on frames of the first step; 0 for a GPU that cannot."""
    encoded = FrameStream(stream.index, stream.batch, stream.seed, encoded=True)
    plan, jpegs = encoded.plan(0), []
    for item in range(len(plan.video)):
        jpegs += encoded.read(plan, item).pictures
        if len(jpegs) >= _TRIED:
            break
    jpegs = (jpegs * (_TRIED // len(jpegs) + 1))[:_TRIED]
    gpu = 0.0
    if device.type == "cuda":
        decode_there(jpegs, device)  # sets the decoder up
        began = time.perf_counter()
        _, unknown = decode_there(jpegs, device)
        torch.cuda.synchronize(device)
        gpu = 0.0 if len(unknown) > len(jpegs) // 2 else len(jpegs) / (time.perf_counter() - began)
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        list(pool.map(_decode_or_not, [jpeg.numpy().tobytes() for jpeg in jpegs]))
        return Rates(gpu, len(jpegs) / (time.perf_counter() - began))


def _decode_or_not(jpeg: bytes) -> None:
    try:
        decode(jpeg)
    except (RuntimeError, ValueError):
        return  # damaged: it will be named when it is trained on


# --- once and for all ---


def keep_resident(
    stream: FrameStream, recipe: Recipe, machine: Machine, world: World, steps: int, console: Console
) -> Store | None:
    """All frames decoded, in memory, if they fit and if so many steps see enough of them to be worth it."""
    batch, index = recipe.batch, stream.index
    frames = frames_in_use(index, stream.eligible)
    seen = steps * batch.videos * batch.shots * (1 if batch.source == "frame" else batch.frames) // world.size
    if machine.resident == "off" or (machine.resident == "auto" and seen < frames):
        return None
    on_gpu, on_host = rooms(world.device)
    size = decoded_bytes(index, stream.eligible, max(on_gpu, on_host))
    if size is None:
        if machine.resident == "on":
            room = max(on_gpu, on_host) / 2**30
            raise UserError(
                f"--resident on: the {frames:,} frames of {index.corpus} take more than the {room:.1f} GiB that can "
                "be spared when they are decoded; leave it out"
            )
        return None
    keep_on = world.device if size <= on_gpu else torch.device("cpu")
    with ProgressLine("decode", frames, console) as line:
        threads = machine.threads or max(1, available_cores() // processes_here())
        show: Callable[[int], None] = lambda done: line.show(done, f"{done:,} of {frames:,} frames decoded")  # noqa: E731
        store = load_store(stream, threads, size, world.device, keep_on, show)
    if store is not None:
        where = "on the GPU" if keep_on.type == "cuda" else "in memory"
        console.print(f"all {frames:,} frames are kept {where}, decoded: {size / 2**30:.1f} GiB", soft_wrap=True)
    elif machine.resident == "on":
        raise UserError(f"--resident on: videos of {index.corpus} have frames of several sizes; leave it out")
    return store


def rooms(device: torch.device) -> tuple[int, int]:
    """Bytes that a resident corpus may take on the GPU and on the host."""
    on_gpu = int(_SHARE_OF_GPU * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0
    return on_gpu, int(_SHARE_OF_HOST * available_memory()) // processes_here()
