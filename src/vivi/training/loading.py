"""Where the pictures of a run come from: decoded here or by the GPU, as it goes along or once and for all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import torch
from rich.console import Console
from torch import Tensor

from vivi.batches.frames import FrameStream, decode, decode_there
from vivi.batches.image_stream import ImageStream
from vivi.batches.loader import Loader
from vivi.batches.resident import ResidentLoader, Store, decoded_bytes, frames_in_use, load_store
from vivi.errors import UserError
from vivi.machine import available_cores, available_memory
from vivi.progress import ProgressLine
from vivi.recipes import Recipe
from vivi.training.data import Data, image_stream, video_stream
from vivi.training.distributed import World, processes_here
from vivi.training.feed import AnyLoader, Batches
from vivi.training.machine import Machine

# More threads wait for Python's lock, and make the one that feeds the GPU wait: 16 are a third slower than 4.
MOST_THREADS = 4
# Of what is free. On a GPU activations take up to 0.6 of it (memory.py), what is made ahead 0.05 (feed.py).
_SHARE_OF_GPU, _SHARE_OF_HOST = 0.25, 0.5
_TRIED, _TRIED_IMAGES = 256, 64  # JPEGs, to see who decodes them faster; images may be large,
_TASKS = 16  # shared among the threads


@contextmanager
def open_batches(
    data: Data, recipe: Recipe, machine: Machine, world: World, start: int, console: Console
) -> Iterator[Batches]:
    """The batches of a run from step `start` on, for the cores of this process."""
    with ExitStack() as stack:
        videos = _video_loader(data, recipe, machine, world, start, console)
        images = _image_loader(data, recipe, machine, world, start, console)
        for loader in (videos, images):
            if loader is not None:
                stack.enter_context(loader)
        labels = torch.from_numpy(data.labelled.labels) if data.labelled else torch.zeros(0, dtype=torch.int64)
        yield Batches(videos, images, labels)


def _video_loader(
    data: Data, recipe: Recipe, machine: Machine, world: World, start: int, console: Console
) -> AnyLoader | None:
    stream = video_stream(data, recipe)
    if machine.resident == "on" and not isinstance(stream, FrameStream):
        raise UserError(f"{recipe.name} learns from no videos: leave --resident out")
    if stream is None:
        return None
    threads = reading_threads(machine)
    stream.encoded = gpu_decodes(stream, machine, world.device, threads, console)
    mine = world.cores(recipe.batch.cores)
    if isinstance(stream, FrameStream):
        store = keep_resident(stream, recipe, machine, world, recipe.steps - start, console)
        if store is not None:
            return ResidentLoader(stream, store, mine.start, mine.stop, start, recipe.steps)
    pin = world.device.type == "cuda"
    return Loader(stream, mine.start, mine.stop, threads, start, recipe.steps, pin=pin)


def _image_loader(
    data: Data, recipe: Recipe, machine: Machine, world: World, start: int, console: Console
) -> Loader | None:
    stream = image_stream(data, recipe)
    if stream is None:
        return None
    threads = reading_threads(machine)
    if recipe.batch.videos and not machine.threads:
        threads = max(1, threads // 2)  # labelled images are fewer
    stream.encoded = gpu_decodes(stream, machine, world.device, threads, console)
    mine, pin = world.cores(recipe.batch.cores), world.device.type == "cuda"
    return Loader(stream, mine.start, mine.stop, threads, start, recipe.steps, pin=pin)


def reading_threads(machine: Machine) -> int:
    """Threads that read, and decode where the GPU does not, while training."""
    return machine.threads or min(MOST_THREADS, max(1, available_cores() // processes_here()))


# --- who decodes ---


@dataclass(frozen=True)
class Rates:
    """JPEGs a second that are decoded."""

    gpu: float
    threads: float


def gpu_decodes(
    stream: FrameStream | ImageStream, machine: Machine, device: torch.device, threads: int, console: Console
) -> bool:
    """Whether the GPU is to decode: where there is one, if it is faster than the threads."""
    if device.type != "cuda" and machine.decode == "gpu":
        raise UserError(f"--decode gpu: {device.type} is no CUDA device; leave it out")
    if device.type != "cuda" or machine.decode == "cpu":
        return False
    what = "frames" if isinstance(stream, FrameStream) else "images"
    rates = decoding_rates(stream, device, threads)
    if machine.decode == "gpu":
        if rates.gpu == 0:
            raise UserError(f"--decode gpu: the GPU, or this torchvision, cannot decode these {what}; leave it out")
        return True
    faster = rates.gpu > rates.threads
    who = "the GPU" if faster else f"{threads} threads"
    console.print(
        f"{what} are decoded by {who} (beside training, threads {rates.threads:,.0f}/s, GPU {rates.gpu:,.0f}/s)",
        soft_wrap=True,
    )
    return faster


def decoding_rates(stream: FrameStream | ImageStream, device: torch.device, threads: int) -> Rates:
    """Tried on the first step's JPEGs; 0 for who cannot.

    The GPU is kept busy meanwhile, as in training. It makes all the difference: an H200 that computes decodes a tenth
    of what it does otherwise.
    """
    jpegs = _some_jpegs(stream)
    if not jpegs:
        return Rates(0.0, 0.0)
    gpu = 0.0
    if device.type == "cuda":
        decode_there(jpegs[:8], device)  # sets the decoder up
        with torch.cuda.stream(torch.cuda.Stream(device)):
            busy(device, seconds=0.5)
            began = time.perf_counter()
            _, unknown = decode_there(jpegs, device)
            gpu = 0.0 if len(unknown) > len(jpegs) // 2 else len(jpegs) / (time.perf_counter() - began)
        torch.cuda.synchronize(device)
    with ThreadPoolExecutor(threads) as pool:
        began = time.perf_counter()
        list(pool.map(_decode_or_not, [jpegs[start::_TASKS] for start in range(_TASKS)]))
        return Rates(gpu, len(jpegs) / (time.perf_counter() - began))


def _some_jpegs(stream: FrameStream | ImageStream) -> list[Tensor]:
    """Files of the first step, some more than once if it has few."""
    count = _TRIED if isinstance(stream, FrameStream) else _TRIED_IMAGES
    before, stream.encoded = stream.encoded, True
    try:
        plan, files = stream.plan(0), []
        for item in range(len(plan.video)):
            files += [picture for picture in stream.read(plan, item).pictures if picture.ndim == 1]
            if len(files) >= count:
                break
    finally:
        stream.encoded = before
    return (files * (count // len(files) + 1))[:count] if files else []


def busy(device: torch.device, seconds: float) -> None:
    """Gives the default stream of a GPU so much to do."""
    with torch.cuda.stream(torch.cuda.default_stream(device)):
        matrix = torch.rand(4096, 4096, device=device, dtype=torch.float16)
        torch.mm(matrix, matrix)
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        torch.cuda.synchronize(device)
        for _ in range(int(seconds / (time.perf_counter() - began))):
            torch.mm(matrix, matrix)


def _decode_or_not(jpegs: list[Tensor]) -> None:
    for jpeg in jpegs:
        with suppress(RuntimeError, ValueError):  # damaged: it will be named when it is trained on
            decode(jpeg.numpy().data)


# --- once and for all ---


def keep_resident(
    stream: FrameStream, recipe: Recipe, machine: Machine, world: World, steps: int, console: Console
) -> Store | None:
    """All frames decoded, in memory, if they fit and if so many steps see enough of them to be worth it."""
    batch, index = recipe.batch, stream.index
    frames = frames_in_use(index, stream.eligible)
    seen = steps * batch.videos * batch.shots * batch.frames // world.size
    worth_it = seen >= frames and batch.source != "frame"  # which sees one frame of each video
    if machine.resident == "off" or (machine.resident == "auto" and not worth_it):
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
    threads = machine.threads or max(1, available_cores() // processes_here())
    with ProgressLine("decode", frames, console) as line:

        def show(done: int) -> None:
            line.show(done, f"{done:,} of {frames:,} frames decoded")

        store = load_store(stream, threads, size, world.device, keep_on, show)
        if store is not None:
            where = "on the GPU" if keep_on.type == "cuda" else "in memory"
            line.show(frames, f"all {frames:,} frames are kept {where}, decoded: {size / 2**30:.1f} GiB")
    if store is None and machine.resident == "on":
        raise UserError(f"--resident on: videos of {index.corpus} have frames of several sizes; leave it out")
    return store


def rooms(device: torch.device) -> tuple[int, int]:
    """Bytes that a resident corpus may take on the GPU and on the host."""
    on_gpu = int(_SHARE_OF_GPU * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0
    return on_gpu, int(_SHARE_OF_HOST * available_memory()) // processes_here()
