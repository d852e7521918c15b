"""JPEG decoders beside each other, on the frames of a corpus or on any JPEG files.

    vivi bench decode corpus/ --rounds 5

Each decodes the same files, which lie in memory, to 8-bit RGB, with one thread and with several; all in turn, several
rounds. simplejpeg, strict, is what vivi decodes with. A decoder that is not installed is said to be missing.
"""

from __future__ import annotations

import io
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import tyro
from common import about_machine, check_file, command, median, spread, start, table, write_json
from numpy.typing import NDArray
from rich.console import Console
from tyro.conf import Positional

from vivi.data.index import open_index, read_frames
from vivi.prepare.corpus import Corpus
from vivi.prepare.jpeg import decode_jpeg
from vivi.runtime.console import SafeConsole
from vivi.runtime.errors import UserError, check_ranges, first_line
from vivi.runtime.machine import available_cores

OURS = "simplejpeg"
PACKAGES = ("simplejpeg", "torch", "torchvision", "torchcodec", "opencv-python", "opencv-python-headless", "pillow")
Decode = Callable[[Sequence[bytearray]], Sequence[Any]]


@dataclass(frozen=True)
class DecodeOptions:
    """Measure JPEG decoders beside each other: simplejpeg, torchvision, OpenCV, torchcodec and Pillow."""

    images: Positional[Path]
    """A corpus made by vivi prepare, or a folder of JPEG files."""
    count: int = 1000
    """Images to decode in each round, evenly from all of them."""
    threads: int = 0
    """Threads, beside one; 0: one for each core."""
    rounds: int = 5
    """All decoders are measured in turn, so many times."""
    beside_training: bool = False
    """Keep the GPU busy with matrix products meanwhile, and say how much slower these become."""
    json: Path | None = None
    """Also write the figures to this file."""

    def check(self) -> None:
        check_ranges(self, {"count": (1, 10**7), "threads": (0, 1024), "rounds": (1, 10**6)})
        check_file("--json", self.json)
        if self.beside_training and not torch.cuda.is_available():
            raise UserError("--beside-training keeps a GPU busy, and there is none: remove it")


def bench_decode(options: DecodeOptions, console: Console) -> dict[str, Any]:
    """Measures, prints and returns what it found."""
    options.check()
    jpegs = find_jpegs(options.images, options.count)
    pixels = [image.shape[0] * image.shape[1] for image in map(decode_jpeg, jpegs)]
    decoders, missing = find_decoders(jpegs[0])
    threads = options.threads or available_cores()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mean_pixels, mean_bytes = float(np.mean(pixels)), float(np.mean([len(jpeg) for jpeg in jpegs]))
    about = {
        "machine": about_machine(device),
        "versions": _versions(),
        "images": len(jpegs),
        "mean_pixels": mean_pixels,
        "mean_bytes": mean_bytes,
    }
    console.print(
        f"{len(jpegs):,} images of {mean_pixels:,.0f} pixels and {mean_bytes:,.0f} bytes on average, on "
        f"{about_machine(device)}",
        soft_wrap=True,
    )
    found = {name: Found(compare(decoder, jpegs)) for name, decoder in decoders.items()}
    with BusyGPU(device) if options.beside_training else nullcontext() as busy:
        for _ in range(options.rounds):
            measure_round(decoders, jpegs, sorted({1, threads}), busy, found)
    whole = {**about, "decoders": {name: one.as_json() for name, one in found.items()}, "missing": missing}
    print_found(found, missing, len(jpegs), console)
    write_json(options.json, whole)
    return whole


# --- the images ---


def find_jpegs(folder: Path, count: int) -> list[bytearray]:
    """At most so many JPEG files, evenly from all that a corpus or a folder has."""
    found = _frames(Corpus(folder), count) if (folder / "corpus.json").exists() else _files(folder, count)
    for name, jpeg in found:
        try:
            decode_jpeg(jpeg)
        except ValueError as error:
            raise UserError(f"{name} cannot be decoded ({first_line(error)}): remove it") from None
    return [jpeg for _, jpeg in found]


def _files(folder: Path, count: int) -> list[tuple[str, bytearray]]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise UserError(f"{folder} is no corpus, and no folder with JPEG files (.jpg, .jpeg)")
    chosen = [paths[number] for number in _evenly(len(paths), count)]
    return [(str(path), bytearray(path.read_bytes())) for path in chosen]


def _frames(corpus: Corpus, count: int) -> list[tuple[str, bytearray]]:
    index = open_index(corpus)
    ends = np.cumsum(index.frames, dtype=np.int64)
    if not len(ends):
        raise UserError(f"{corpus.path} holds no frames")
    found = []
    for number in _evenly(int(ends[-1]), count):
        shot = int(np.searchsorted(ends, number, side="right"))
        video = int(np.searchsorted(index.first_shot, shot, side="right")) - 1
        within = number - int(ends[shot] - index.frames[shot])
        jpeg = bytearray(read_frames(index, video, shot, [within])[0])
        found.append((f"a frame of video {index.video_name(video)} in {corpus.path}", jpeg))
    return found


def _evenly(total: int, count: int) -> list[int]:
    numbers: list[int] = np.linspace(0, total - 1, min(count, total)).round().astype(np.int64).tolist()
    return numbers


# --- the decoders ---


@dataclass(frozen=True)
class Decoder:
    """Decodes some files at a time."""

    decode: Decode
    at_once: int = 16


def find_decoders(jpeg: bytearray) -> tuple[dict[str, Decoder], dict[str, str]]:
    """The decoders that can decode a file, and why the others are missing."""
    torch.set_num_threads(1)  # who uses several threads is decided here
    makers = {
        OURS: lambda: Decoder(_one_by_one(decode_jpeg)),
        "torchvision": lambda: _torchvision("cpu"),
        "OpenCV": _opencv,
        "torchcodec": lambda: _torchcodec("cpu"),
        "Pillow": _pillow,
    }
    if torch.cuda.is_available():
        makers |= {"torchvision, CUDA": lambda: _torchvision("cuda"), "torchcodec, CUDA": lambda: _torchcodec("cuda")}
    decoders, missing = {}, {}
    for name, make in makers.items():
        try:
            decoder = make()
            decoder.decode([jpeg])
            decoders[name] = decoder
        except (ImportError, OSError, RuntimeError) as error:  # not there, or it does not fit this torch or GPU
            missing[name] = first_line(error)
    return decoders, missing


def _one_by_one(decode: Callable[[bytearray], Any]) -> Decode:
    return lambda jpegs: [decode(jpeg) for jpeg in jpegs]


def _torchvision(device: str) -> Decoder:
    from torchvision.io import ImageReadMode, decode_jpeg

    warnings.filterwarnings("ignore", module="torchvision.io")  # deprecated since 0.29
    return _of_tensors(lambda files: decode_jpeg(files, ImageReadMode.RGB, device=device), device)


def _torchcodec(device: str) -> Decoder:
    from torchcodec.decoders import decode_jpeg  # type: ignore[import-not-found]

    return _of_tensors(lambda files: decode_jpeg(files, mode="RGB", device=device), device)


def _of_tensors(decode: Callable[[list[torch.Tensor]], Any], device: str) -> Decoder:
    """For torch's decoders: files as tensors; a GPU decodes many at once."""

    def run(jpegs: Sequence[bytearray]) -> Sequence[Any]:
        images: Sequence[Any] = decode([torch.frombuffer(jpeg, dtype=torch.uint8) for jpeg in jpegs])
        if device == "cuda":
            torch.cuda.current_stream().synchronize()
        return images

    return Decoder(run, at_once=128 if device == "cuda" else 16)


def _opencv() -> Decoder:
    import cv2

    cv2.setNumThreads(1)

    def decode(jpeg: bytearray) -> Any:
        bgr = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        return cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB)

    return Decoder(_one_by_one(decode))


def _pillow() -> Decoder:
    from PIL import Image

    return Decoder(_one_by_one(lambda jpeg: np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))))


# --- what is measured ---


@dataclass(frozen=True)
class Same:
    """In how many images all pixels are those of simplejpeg, and how far one is off at most."""

    images: int
    largest: int


@dataclass(frozen=True)
class Found:
    """Of one decoder: its pixels; and for each number of threads, images a second in each round, and, where the GPU
    was kept busy, its matrix products a second beside those without a decoder."""

    same: Same
    rates: dict[int, list[float]] = field(default_factory=dict)
    products: dict[int, list[float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "same_images": self.same.images,
            "largest_difference": self.same.largest,
            "images_per_second": self.rates,
            "medians": {threads: median(rates) for threads, rates in self.rates.items()},
            "matrix_products": self.products,
        }


def compare(decoder: Decoder, jpegs: Sequence[bytearray]) -> Same:
    same, largest = 0, 0
    for part in _parts(jpegs, decoder.at_once):
        for jpeg, image in zip(part, decoder.decode(part), strict=True):
            expected, pixels = decode_jpeg(jpeg), _as_numpy(image)
            off = int(np.abs(expected.astype(np.int16) - pixels).max()) if expected.shape == pixels.shape else 255
            same, largest = same + (off == 0), max(largest, off)
    return Same(same, largest)


def _as_numpy(image: Any) -> NDArray[np.uint8]:
    """(height, width, 3)."""
    array: NDArray[np.uint8] = image.permute(1, 2, 0).cpu().numpy() if isinstance(image, torch.Tensor) else image
    return array


def _parts(jpegs: Sequence[bytearray], size: int) -> Iterator[Sequence[bytearray]]:
    return (jpegs[first : first + size] for first in range(0, len(jpegs), size))


def measure_round(
    decoders: dict[str, Decoder],
    jpegs: Sequence[bytearray],
    threads: Sequence[int],
    busy: BusyGPU | None,
    found: dict[str, Found],
) -> None:
    """Measures all decoders in turn, with each number of threads, and adds the figures to those found."""
    alone = busy.rate_during(lambda: time.sleep(1))[1] if busy else 0.0
    for name, decoder in decoders.items():
        for many in threads:
            rate, products = measure(decoder, jpegs, many, busy)
            found[name].rates.setdefault(many, []).append(rate)
            if busy:
                found[name].products.setdefault(many, []).append(products / alone)


def measure(decoder: Decoder, jpegs: Sequence[bytearray], threads: int, busy: BusyGPU | None) -> tuple[float, float]:
    """Images that so many threads decode in a second, and matrix products meanwhile."""

    def work(part: Sequence[bytearray]) -> None:
        decoder.decode(part)

    def run() -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, _parts(jpegs, decoder.at_once)))

    if busy:
        seconds, products = busy.rate_during(run)
        return len(jpegs) / seconds, products
    began = time.perf_counter()
    run()
    return len(jpegs) / (time.perf_counter() - began), 0.0


class BusyGPU:
    """Matrix products, one after the other, for as long as it is entered: a stand-in for training."""

    def __init__(self, device: torch.device, size: int = 8192) -> None:
        self.device, self.done, self.stopped = device, 0, threading.Event()
        self.matrix = torch.rand(size, size, device=device, dtype=torch.bfloat16)
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        under_way: deque[torch.cuda.Event] = deque()
        with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.Stream(self.device)):
            while not self.stopped.is_set():
                torch.mm(self.matrix, self.matrix)
                under_way.append(torch.cuda.Event())
                under_way[-1].record()
                if len(under_way) > 4:  # as many as keep the GPU from waiting for this thread
                    under_way.popleft().synchronize()
                    self.done += 1

    def rate_during(self, action: Callable[[], None]) -> tuple[float, float]:
        """Seconds that an action takes, and products a second meanwhile."""
        before, began = self.done, time.perf_counter()
        action()
        seconds = time.perf_counter() - began
        return seconds, (self.done - before) / seconds

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()


# --- what is shown ---


def print_found(found: dict[str, Found], missing: dict[str, str], images: int, console: Console) -> None:
    counts = list(found[OURS].rates)
    titles = [f"{_threads(many)}, images/s" for many in counts]
    titles += [f"matrix products, {_threads(many)}" for many in found[OURS].products]
    shown = table("", *titles, "of simplejpeg", "")
    for name, one in found.items():
        cells = [spread(one.rates[many], 0) for many in counts]
        cells += [spread(shares) for shares in one.products.values()]
        ratios = [median(one.rates[many]) / median(found[OURS].rates[many]) for many in counts]
        same = f"pixels differ in {images - one.same.images:,} of {images:,} images, by {one.same.largest} at most"
        pixels = same if one.same.images < images else "the same pixels"
        shown.add_row(name, *cells, ", ".join(f"{ratio:.2f}" for ratio in ratios), "" if name == OURS else pixels)
    console.print(shown)
    for name, reason in missing.items():
        console.print(f"{name} is missing: {reason}", soft_wrap=True)


def _threads(many: int) -> str:
    return f"{many} threads" if many > 1 else "1 thread"


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def main() -> None:
    console = SafeConsole()
    console.width = max(console.width, 120)  # of the table
    bench_decode(tyro.cli(DecodeOptions, prog=command()), console)


if __name__ == "__main__":
    start(main)
