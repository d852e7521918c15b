"""What a run learns from: a corpus of videos, images, or both, as its recipe wants; and the loaders of its steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import torch
from rich.console import Console

from vivi.data.augment import augment, augment_patches
from vivi.data.augment.patches import PATCHES
from vivi.data.cut import cut
from vivi.data.images import LabelledImages, class_balanced, find_images, find_test_images, only_listed
from vivi.data.index import Index, open_index
from vivi.data.loader import Loader, Prefetch
from vivi.data.plan import Kind, with_enough_shots
from vivi.data.resident import ResidentSource, decoded_bytes, load_resident
from vivi.data.sources import CorpusSource, ImageSource, Source
from vivi.prepare.corpus import Corpus
from vivi.recipes import Recipe
from vivi.recipes.check import check_recipe
from vivi.runtime.console import explain, warn
from vivi.runtime.distributed import World, processes_here
from vivi.runtime.errors import UserError
from vivi.runtime.machine import available_cores, available_memory
from vivi.runtime.progress import ProgressLine
from vivi.train.micro_batch import MicroBatchSize
from vivi.train.settings import DataPaths, Execution

# More threads wait for Python's lock, and make the one that feeds the GPU wait: 16 are a third slower than 4.
MOST_THREADS = 4
# Of what is free, for frames that are kept decoded. On a GPU activations take up to 0.6 of it (micro_batch.py), what
# is made ahead 0.05 (loader.py).
_SHARE_OF_GPU, _SHARE_OF_HOST = 0.25, 0.5


@dataclass(frozen=True)
class TrainingData:
    """The data, found and counted, but not read."""

    recipe: Recipe  # with a batch that is no larger than the data
    index: Index | None  # of the videos
    images: LabelledImages | None  # all of them
    labelled: LabelledImages | None  # those whose labels are used
    test: LabelledImages | None
    videos_source: CorpusSource | ImageSource | None = None  # the videos of steps, or the images in their place
    labelled_source: ImageSource | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        return self.labelled.classes if self.labelled else ()

    def facts(self) -> dict[str, str]:
        """Where the data lies, and fingerprints, which a resumed run and every process of a run must find again."""
        index, images, labelled, test = self.index, self.images, self.labelled, self.test
        facts = {
            "corpus": str(index.corpus.resolve()) if index else "",
            "images": str(images.source.resolve()) if images else "",
            "images_test": str(test.source.resolve()) if test else "",
            "corpus_fingerprint": index.fingerprint if index else "",
            "images_fingerprint": images.fingerprint() if images else "",
            "labels_fingerprint": labelled.fingerprint() if labelled else "",
        }
        return {name: fact for name, fact in facts.items() if fact}

    def notes(self) -> list[str]:
        """What was left out, and what is odd, a line each."""
        notes = [self.index.note] if self.index and self.index.note else []
        for images in (self.labelled or self.images, self.test):
            notes += images.notes if images else ()
        if self.test is not None and self.images is not None:
            tested = set(self.test.files())
            both = sum(file in tested for file in self.images.files())
            if both:
                notes.append(f"{both:,} of the {len(self.test):,} test images are also trained on")
        return notes


def open_data(recipe: Recipe, paths: DataPaths) -> TrainingData:
    """Finds what the recipe learns from; raises where it is missing, not wanted, or too little."""
    paths.check(recipe)
    index = images = labelled = test = None
    if paths.corpus is not None:
        corpus = Corpus(paths.corpus)
        index = cut(open_index(corpus), corpus.settings, recipe.batch)
        pa.default_memory_pool().release_unused()  # or Arrow keeps a gigabyte of the tables of a large corpus
    if paths.images is not None:
        images = find_images(paths.images, labels=recipe.learns_from_labels)
        if recipe.learns_from_labels:
            if paths.images_list is not None:
                labelled = only_listed(images, paths.images_list)
            else:
                labelled = class_balanced(images, recipe.images.fraction, recipe.images.fraction_seed)
        if len(images.classes) < 2 and paths.images_test is not None:
            raise UserError(f"{paths.images} has no classes to test: remove --images-test")
        if len(images.classes) > 1:
            test = find_test_images(paths.images, paths.images_test, (labelled or images).classes)
    recipe = fit_batch(recipe, index, images, labelled)
    videos_source: CorpusSource | ImageSource | None = None
    if recipe.batch.videos and index is not None:
        videos_source = CorpusSource(index, recipe.batch, recipe.seed)
    elif recipe.batch.videos and images is not None:
        videos_source = ImageSource(images, recipe, Kind.FRAMES)
    labelled_source = ImageSource(labelled, recipe, Kind.LABELLED) if labelled is not None else None
    return TrainingData(recipe, index, images, labelled, test, videos_source, labelled_source)


def fit_batch(
    recipe: Recipe, index: Index | None, images: LabelledImages | None, labelled: LabelledImages | None
) -> Recipe:
    """The recipe with as many videos and labelled images a step as there are, if it wants more. It then has fewer
    cores, so that none has fewer videos than it would have; of one core, as many as are there. Where that cannot
    work, the recipe stays as it is."""
    batch, count = recipe.batch, recipe.images.count
    there = len(images) if images is not None else 0
    if index is not None and batch.videos:
        there = len(with_enough_shots(index, batch.shots))
    videos, cores = min(batch.videos, there), batch.cores
    wanted = min(count, len(labelled) if labelled is not None else 0)
    while cores > 1 and (videos < cores * (batch.videos // batch.cores) or wanted < cores * (count // batch.cores)):
        cores = next(fewer for fewer in range(cores - 1, 0, -1) if cores % fewer == 0)
    fitted = replace(
        recipe,
        batch=replace(batch, videos=videos - videos % cores, cores=cores),
        images=replace(recipe.images, count=wanted - wanted % cores),
    )
    if (videos, wanted) == (batch.videos, count):
        return recipe
    try:
        check_recipe(fitted)
    except UserError:  # its sources will say what is missing
        return recipe
    return fitted


# --- the loaders ---


def prefetch_steps(
    data: TrainingData,
    recipe: Recipe,
    execution: Execution,
    world: World,
    size: MicroBatchSize,
    steps: range,
    dtype: torch.dtype,
    console: Console,
) -> Prefetch:
    """What the steps see, for the cores of this process."""
    threads = reading_threads(execution)
    explain(f"{threads} threads read and decode frames: {available_cores()} cores, --threads {execution.threads}")
    cores, device = world.share_of(recipe.batch.cores), world.device
    videos = images = None
    if data.videos_source is not None:
        source: Source = data.videos_source
        if isinstance(source, CorpusSource):
            source = keep_resident(source, execution, world, len(steps), console) or source
        decoders = 0 if isinstance(source, ResidentSource) else threads
        augment_batch = partial(augment, settings=recipe.augment, dtype=dtype)
        if recipe.sees_patches:
            augment_batch = partial(augment_patches, size=recipe.augment.size, dtype=dtype)
        videos = Loader(source, augment_batch, cores, recipe.batch.cores, size.videos, device, decoders)
    if data.labelled_source is not None:
        decoders = max(1, threads // 2) if recipe.batch.videos and not execution.threads else threads
        policy = recipe.augment.policy if recipe.images.policy == "same" else recipe.images.policy
        augment_batch = partial(augment, settings=replace(recipe.augment, policy=policy), dtype=dtype)
        images = Loader(data.labelled_source, augment_batch, cores, recipe.batch.cores, size.images, device, decoders)
    return Prefetch(videos, images, steps, device, micro_batch_bytes(recipe, size, dtype))


def reading_threads(execution: Execution, most: int = MOST_THREADS) -> int:
    """Threads of this process that read and decode, by default as many as while training."""
    return execution.threads or min(most, max(1, available_cores() // processes_here()))


def micro_batch_bytes(recipe: Recipe, size: MicroBatchSize, dtype: torch.dtype) -> int:
    """Bytes that the largest micro-batch takes on the device."""
    batch, images = recipe.batch, recipe.images
    videos = batch.videos * batch.shots * batch.frames * size.videos
    frames = max(videos, images.count * images.copies * size.images) // batch.cores
    return frames * (PATCHES if recipe.sees_patches else 1) * 3 * recipe.augment.size**2 * dtype.itemsize


# --- frames that are kept decoded ---


def keep_resident(
    source: CorpusSource, execution: Execution, world: World, steps: int, console: Console
) -> ResidentSource | None:
    """All frames decoded, in memory, if they fit and if so many steps see enough of them to be worth it."""
    if execution.resident == "off":
        return None
    batch, corpus, frames = source.batch, source.index.corpus, int(source.frame_counts().sum())
    per_shot = batch.frames if batch.source == "shot" else 1
    streamed = steps * batch.videos * batch.shots * per_shot // world.size  # frames that are decoded otherwise
    if execution.resident == "auto" and streamed < frames:
        explain(f"frames are decoded when they are needed: the run sees {streamed:,}, the corpus has {frames:,}")
        return None
    on_gpu, on_host = memory_to_spare(world.device)
    most = max(on_gpu, on_host)
    size = decoded_bytes(source, most)
    resident = None
    why_not = f"decoded, the {frames:,} frames of {corpus} take more than the {most / 2**30:.1f} GiB to spare"
    if size is not None:
        keep_on = world.device if size <= on_gpu else torch.device("cpu")
        threads = reading_threads(execution, most=available_cores())
        damaged_frames: list[str] = []
        with ProgressLine("decode", frames, console) as progress:

            def show(done: int, damaged: tuple[str, ...]) -> None:
                damaged_frames.extend(damaged)
                progress.show(done, f"{done:,} of {frames:,} frames decoded")

            resident = load_resident(source, size, threads, world.device, keep_on, show)
            if resident is not None:
                where = "on the GPU" if keep_on.type == "cuda" else "in memory"
                progress.show(frames, f"all {frames:,} frames are kept {where}, decoded: {size / 2**30:.1f} GiB")
        if resident is not None:
            for line in damaged_frames:
                warn(console, line)
        why_not = f"videos of {corpus} have frames of several sizes"
    if resident is None:
        if execution.resident == "on":
            raise UserError(f"--resident on: {why_not}; remove it")
        explain(f"frames are decoded when they are needed: {why_not}")
    return resident


def memory_to_spare(device: torch.device) -> tuple[int, int]:
    """Bytes that decoded frames may take on the GPU and on the host."""
    on_gpu = int(_SHARE_OF_GPU * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0
    return on_gpu, int(_SHARE_OF_HOST * available_memory()) // processes_here()
