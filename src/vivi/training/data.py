"""What a run learns from: a corpus of videos, images, or both, as its recipe wants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from vivi.batches.frames import FrameStream
from vivi.batches.image_stream import ImageStream, labelled_stream, unlabelled_stream
from vivi.batches.images import LabelledImages, class_balanced, find_images, find_test_images, only_listed
from vivi.batches.index import Index, open_index
from vivi.batches.sampler import eligible
from vivi.errors import UserError
from vivi.recipes import Recipe
from vivi.training.sources import Sources, check_sources
from vivi.video.corpus import Corpus

# A fingerprint that has changed, in words, and the place that it is of.
IN_WORDS = {
    "corpus_fingerprint": ("another corpus", "corpus"),
    "images_fingerprint": ("other images", "images"),
    "labels_fingerprint": ("the labels of other images", "images"),
}


@dataclass(frozen=True)
class Data:
    """The data, found and counted, but not read."""

    index: Index | None  # of the videos
    images: LabelledImages | None  # all of them
    labelled: LabelledImages | None  # those whose labels are used
    test: LabelledImages | None

    @property
    def classes(self) -> int:
        return len(self.labelled.classes) if self.labelled else 0

    def fingerprints(self) -> dict[str, str]:
        """What a resumed run must find again."""
        prints = {"corpus_fingerprint": self.index.fingerprint} if self.index else {}
        for name, images in (("images_fingerprint", self.images), ("labels_fingerprint", self.labelled)):
            prints |= {name: images.fingerprint()} if images else {}
        return prints

    def places(self) -> dict[str, str]:
        places = {"corpus": str(self.index.corpus.resolve())} if self.index else {}
        for name, images in (("images", self.images), ("images_test", self.test)):
            places |= {name: str(images.source.resolve())} if images else {}
        return places

    def notes(self) -> list[str]:
        """What was left out, and what is odd, a line each."""
        notes = [self.index.note] if self.index and self.index.note else []
        notes += [note for images in (self.labelled or self.images, self.test) if images for note in images.notes]
        if self.test is not None and self.images is not None:
            tested = set(self.test.files())
            both = sum(file in tested for file in self.images.files())
            if both:
                notes.append(f"{both:,} of the {len(self.test):,} test images are also trained on")
        return notes


def open_data(recipe: Recipe, sources: Sources) -> Data:
    """Finds what the recipe learns from; raises where it is missing, not wanted, or too little."""
    check_sources(recipe, sources)
    index = images = labelled = test = None
    if sources.corpus is not None:
        index = open_index(Corpus(sources.corpus))
        pa.default_memory_pool().release_unused()  # or Arrow keeps a gigabyte of the tables of a large corpus
        eligible(index, recipe.batch)
    if sources.images is not None:
        images = find_images(sources.images, labels=recipe.images.count > 0)
        labelled = _labelled(images, recipe, sources.images_list)
        if len(images.classes) > 1:
            test = find_test_images(sources.images, sources.images_test, (labelled or images).classes)
    data = Data(index, images, labelled, test)
    video_stream(data, recipe)
    image_stream(data, recipe)
    return data


def _labelled(images: LabelledImages, recipe: Recipe, listed: Path | None) -> LabelledImages | None:
    """The images whose labels the recipe uses."""
    if recipe.images.count == 0:
        if listed is not None:
            raise UserError(f"{recipe.name} learns from no labels: leave --images-list out")
        return None
    if listed is not None:
        return only_listed(images, listed)
    return class_balanced(images, recipe.images.fraction, recipe.images.fraction_seed)


def video_stream(data: Data, recipe: Recipe) -> FrameStream | ImageStream | None:
    """The videos of a recipe's steps, or the images in their place."""
    if recipe.batch.videos == 0:
        return None
    if data.index is not None:
        return FrameStream(data.index, recipe.batch, recipe.seed)
    assert data.images is not None
    return unlabelled_stream(data.images, recipe)


def image_stream(data: Data, recipe: Recipe) -> ImageStream | None:
    """The labelled images of a recipe's steps."""
    return labelled_stream(data.labelled, recipe) if data.labelled is not None else None
