"""Sources: the planned frames and images, each decoded once; what cannot be decoded is replaced and named."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import altered, jpeg, make_corpus, write_images
from PIL import Image

from vivi.data.images import find_images
from vivi.data.index import Index, open_index
from vivi.data.packed import PackedImages
from vivi.data.plan import Kind, eligible_videos, plan_videos
from vivi.data.sources import CorpusSource, Decoded, ImageSource
from vivi.prepare.corpus import Corpus, shard_path
from vivi.recipes import RECIPES, Batch, Images, Recipe
from vivi.runtime.errors import UserError

BATCH = Batch(videos=4, shots=2, frames=6, cores=2)
FRAME = Batch(videos=4, shots=1, frames=3, cores=2, source="frame")


@pytest.fixture(scope="module")
def index(corpus: Path) -> Index:
    return open_index(Corpus(corpus))


def read(source: CorpusSource | ImageSource, step: int = 0) -> Decoded:
    return source.read(source.plan(step))


def levels(images: PackedImages) -> list[int]:
    """The colour of each image, to the nearest ten."""
    return [round(float(images.image(number).float().mean()) / 10) * 10 for number in range(len(images))]


# Frames of a corpus.


@pytest.mark.parametrize("batch", [BATCH, FRAME, replace(FRAME, resample=True)], ids=str)
def test_the_frames_are_those_of_the_plan_each_in_memory_once(corpus: Path, index: Index, batch: Batch) -> None:
    opened = Corpus(corpus)
    rows = {row["video"]: row for row in opened.videos.to_pylist()}
    source = CorpusSource(index, batch, 3)
    for step in range(4):
        plan = plan_videos(index, eligible_videos(index, batch), batch, 3, step)
        decoded = read(source, step)
        assert np.array_equal(decoded.plan.frame, plan.frame) and np.array_equal(decoded.plan.video, plan.video)
        distinct, place = {}, 0
        for position, its_shots, its_frames in zip(plan.video, plan.shot, plan.frame, strict=True):
            shots = list(opened.shots(rows[index.video_name(int(position))]))
            for shot, frames in zip(its_shots, its_frames, strict=True):
                for frame in frames:
                    stored = shots[shot - index.first_shot[position]].frames[frame]
                    expected = np.array(Image.open(io.BytesIO(stored)))
                    assert np.array_equal(decoded.images.image(place).numpy(), expected)
                    distinct[int(shot), int(frame)] = expected.size
                    place += 1
        assert place == len(decoded.images) == plan.frame.size
        assert len(set(decoded.images.starts.tolist())) == len(distinct)
        assert len(decoded.images.memory) == sum(distinct.values())
        assert not decoded.damaged


def test_some_videos_of_a_plan_are_read_as_in_the_whole(index: Index) -> None:
    source = CorpusSource(index, BATCH, 0)
    plan = source.plan(0)
    whole = source.read(plan).images
    for part in (slice(0, 1), slice(1, 4), slice(3, 4)):
        images = source.read(plan[part]).images
        expected = whole[12 * part.start : 12 * part.stop]
        assert len(images) == len(expected) > 0
        assert all(torch.equal(images.image(number), expected.image(number)) for number in range(len(images)))


def test_a_frame_seen_several_times_is_decoded_once(index: Index) -> None:
    decoded = read(CorpusSource(index, FRAME, 0))
    places = decoded.images.starts.reshape(4, 3)
    assert (places == places[:, :1]).all() and len(np.unique(places)) == 4


def test_reads_are_of_about_64_frames(index: Index) -> None:
    assert CorpusSource(index, BATCH, 0).videos_per_read == 5  # of 12 frames
    assert CorpusSource(index, replace(BATCH, frames=80), 0).videos_per_read == 1


def corpus_of(folder: Path, shots: list[list[bytes]]) -> Index:
    return open_index(make_corpus(folder, {"clip": shots}))


@pytest.mark.parametrize("broken", [b"", b"no JPEG", jpeg(0)[:200], jpeg(0)[:-20], altered(1)])
def test_a_damaged_frame_is_replaced_by_the_nearest_and_named(tmp_path: Path, broken: bytes) -> None:
    shots = [[jpeg(10), broken, jpeg(30), broken, broken, jpeg(60)], [jpeg(200)] * 6]
    source = CorpusSource(corpus_of(tmp_path, shots), Batch(videos=1, shots=2, frames=6, cores=1), 0)
    for step in range(3):
        decoded = read(source, step)
        assert levels(decoded.images) == [10, 10, 30, 30, 60, 60] + [200] * 6
        what = "damaged, its neighbour takes its place: video clip shot 0 frame"
        assert [": ".join(line.split(": ")[:2]) for line in decoded.damaged] == [f"{what} {n}" for n in (1, 3, 4)]
        assert all(line.split(": ", 2)[2] and "\n" not in line for line in decoded.damaged)


@pytest.mark.parametrize("frames", [1, 2, 3, 6])
def test_what_replaces_a_frame_is_the_nearest_of_its_shot_whatever_else_is_wanted(
    tmp_path: Path, frames: int
) -> None:
    index = corpus_of(tmp_path, [[jpeg(10), b"?", b"?", b"?", jpeg(50), jpeg(60)]])
    source = CorpusSource(index, Batch(videos=1, shots=1, frames=frames, cores=1), 0)
    seen = set()
    for step in range(50):
        first = int(source.plan(step).frame[0, 0, 0])
        shown = levels(read(source, step).images)
        assert shown == [10, 10, 10, 50, 50, 60][first : first + frames]  # of two that are as near the earlier
        seen.add(first)
    assert seen == set(range(7 - frames))


def test_a_damaged_frame_that_is_seen_several_times_is_named_once(tmp_path: Path) -> None:
    index = corpus_of(tmp_path, [[b"?", jpeg(20)]])
    decoded = read(CorpusSource(index, Batch(videos=1, shots=1, frames=8, cores=1), 0))
    assert levels(decoded.images) == [20] * 8 and len(decoded.damaged) == 1


def test_a_frame_with_another_checksum_is_named_as_such_and_not_decoded(tmp_path: Path) -> None:
    index = corpus_of(tmp_path, [[altered(10), jpeg(20)]])
    decoded = read(CorpusSource(index, Batch(videos=1, shots=1, frames=2, cores=1), 0))
    assert levels(decoded.images) == [20, 20]
    (line,) = decoded.damaged
    assert line.endswith("video clip shot 0 frame 0: its checksum is wrong")


def test_a_shot_without_a_good_frame_is_grey(tmp_path: Path) -> None:
    index = corpus_of(tmp_path, [[b"?", altered(7)], [jpeg(40)]])
    decoded = read(CorpusSource(index, Batch(videos=1, shots=2, frames=3, cores=1), 0))
    assert levels(decoded.images) == [130] * 3 + [40] * 3
    assert (decoded.images.image(0) == 128).all()


def test_a_shard_that_goes_is_an_error(tmp_path: Path) -> None:
    source = CorpusSource(corpus_of(tmp_path, [[jpeg(10)]]), Batch(videos=1, shots=1, frames=1, cores=1), 0)
    assert levels(read(source).images) == [10]
    shard_path(tmp_path, 0).unlink()
    with pytest.raises(UserError, match=r"00000.arrow is missing"):
        read(source)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_decoded_frames_are_pinned_if_asked(index: Index) -> None:
    source = CorpusSource(index, BATCH, 0)
    pinned, plain = source.read(source.plan(0), pin=True).images, source.read(source.plan(0)).images
    assert pinned.memory.is_pinned() and not plain.memory.is_pinned()
    assert torch.equal(pinned.memory, plain.memory) and np.array_equal(pinned.starts, plain.starts)


# Image files.


def image_source(folder: Path, kind: Kind = Kind.LABELLED) -> ImageSource:
    batch = Batch(videos=6, shots=1, frames=2, cores=1, source="image")
    return ImageSource(find_images(folder), Recipe("six", seed=3, batch=batch, images=Images(6, copies=2)), kind)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_step_holds_the_planned_images_once_for_all_copies(tmp_path: Path, kind: Kind) -> None:
    source = image_source(write_images(tmp_path), kind)
    for step in range(5):
        decoded = read(source, step)
        assert len(set(decoded.plan.video.tolist())) == 6
        assert levels(decoded.images) == (10 * decoded.plan.video.repeat(2)).tolist()
        assert decoded.plan.augment_uniforms.shape[:3] == (6, 1, 2)
        assert len(set(decoded.images.starts.tolist())) == 6
        assert not decoded.damaged


@pytest.mark.parametrize("broken", ["empty", "cut", "rubbish in the middle"])
def test_an_unreadable_image_is_replaced_by_the_next_of_its_class_and_named(tmp_path: Path, broken: str) -> None:
    folder = write_images(tmp_path)
    good = (folder / "class1" / "3.jpg").read_bytes()
    contents = {"empty": b"", "cut": good[: len(good) // 2], "rubbish in the middle": good[:20] + b"\xff" * 400}
    for name in ("3.jpg", "4.jpg"):  # images 8 and 9 of 15; after them comes 5, the first of the class
        (folder / "class1" / name).write_bytes(contents[broken])
    source, lines = image_source(folder), set()
    for step in range(10):
        decoded = read(source, step)
        wanted = decoded.plan.video.repeat(2).tolist()
        assert levels(decoded.images) == [10 * {8: 5, 9: 5}.get(image, image) for image in wanted]
        assert len(decoded.damaged) == len({8, 9} & set(wanted))
        lines |= set(decoded.damaged)
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("unreadable, the next of its class takes its place: image ") and "\n" not in line
        assert "class1/3.jpg': " in line or "class1/4.jpg': " in line


def test_an_image_that_goes_is_replaced_too(tmp_path: Path) -> None:
    folder = write_images(tmp_path)
    source = image_source(folder)
    (folder / "class0" / "1.jpg").unlink()
    shown = {
        int(image): level
        for step in range(10)
        for image, level in zip(source.plan(step).video, levels(read(source, step).images)[::2], strict=True)
    }
    assert shown == {image: 20 if image == 1 else 10 * image for image in range(15)}


def test_a_class_of_unreadable_images_is_one_line(tmp_path: Path) -> None:
    folder = write_images(tmp_path)
    for path in (folder / "class2").iterdir():
        path.write_bytes(b"")
    source = image_source(folder)
    with pytest.raises(UserError, match=r"no image of class 'class2' in .* can be read") as caught:
        for step in range(10):
            read(source, step)
    assert "\n" not in str(caught.value)


def test_fewer_images_than_a_step_needs_are_refused(tmp_path: Path) -> None:
    images = find_images(write_images(tmp_path))
    recipe = RECIPES["semi-ex10-tiny"]
    with pytest.raises(UserError, match=r"--batch.videos is 64, but 15 images of .* are used: too few"):
        ImageSource(images, recipe, Kind.FRAMES)
    with pytest.raises(UserError, match=r"--images.count is 64, but 15 images of .* are used"):
        ImageSource(images, recipe, Kind.LABELLED)
    enough = replace(recipe, batch=replace(recipe.batch, videos=15), images=replace(recipe.images, count=15))
    unlabelled, labelled = (ImageSource(images, enough, kind) for kind in Kind)
    assert (labelled.videos, labelled.copies, labelled.kind) == (15, recipe.images.copies, Kind.LABELLED)
    assert (unlabelled.videos, unlabelled.copies, unlabelled.kind) == (15, recipe.batch.frames, Kind.FRAMES)
