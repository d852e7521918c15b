"""The baselines of the paper that learn from images, a function each (see paper.py).

Those that the paper takes from others have the batches and schedules of their own papers, in epochs of ImageNet.
"""

from __future__ import annotations

from dataclasses import replace

from vivi.recipes.losses import Exemplar, Jigsaw, Location, Rotation
from vivi.recipes.paper import EXEMPLAR, FRAME_SCHEDULE, ONE_FRAME, ROTATION
from vivi.recipes.schema import Augment, Batch, Images, Loss, Optimiser, Recipe

IMAGENET = 1_281_167  # images
IMAGENET_10 = 128_000  # those whose labels count, of a tenth
LABELLED_ONLY = Batch(videos=0, shots=1, frames=1, cores=8)
SUPERVISED = Loss(frame=None, video=None, video_weight=0.0, supervised_weight=1.0)
CROP_AND_FLIP = Augment(brightness=0.0, saturation=0.0)
# Patches are cut from the whole image; nothing else is done to it.
PATCHES = Augment(64, (1.0, 1.0), (1.0, 1.0), flip=False, brightness=0.0, saturation=0.0)


def epochs(count: float, batch: int, images: int = IMAGENET) -> int:
    """The steps of so many passes over the images."""
    return round(count * images / batch)


def schedule(
    batch: int, lr: float, weight_decay: float, warmup: int, decays: tuple[int, ...], images: int = IMAGENET
) -> Optimiser:
    """A schedule that is given in epochs."""
    decay_at = tuple(epochs(epoch, batch, images) for epoch in decays)
    return Optimiser(lr=lr, weight_decay=weight_decay, warmup=epochs(warmup, batch, images), decay_at=decay_at)


def ex_imagenet() -> Recipe:
    """Ex-ImageNet: the exemplar loss on images without their labels, each augmented 8 times.

    vivi train ex-imagenet --images I --out run/
    The paper: 59.5 (Version 1), 59.2 (Version 2)."""
    return Recipe("ex-imagenet", batch=replace(ONE_FRAME, source="image"), loss=EXEMPLAR, optimiser=FRAME_SCHEDULE)


def rot_imagenet() -> Recipe:
    """Rot-ImageNet: the rotation loss on images without their labels.

    vivi train rot-imagenet --images I --out run/
    The paper: 60.9 (Version 1), 59.6 (Version 2)."""
    batch = replace(ONE_FRAME, source="image", frames=1)
    return Recipe("rot-imagenet", batch=batch, loss=ROTATION, optimiser=FRAME_SCHEDULE)


def sup10() -> Recipe:
    """Sup-10%: supervised with a tenth of the labels, as in S4L.

    vivi train sup10 --images I --out run/
    The paper: 61.6 (Version 2)."""
    return Recipe(
        "sup10",
        steps=epochs(200, 256, IMAGENET_10),
        batch=LABELLED_ONLY,
        images=Images(256, fraction=0.1),
        augment=CROP_AND_FLIP,
        loss=SUPERVISED,
        optimiser=schedule(256, 0.1, 1e-3, 5, (140, 160, 180), IMAGENET_10),
    )


def sup100() -> Recipe:
    """Sup-100%: supervised with all labels.

    vivi train sup100 --images I --out run/
    The paper: 66.4 (Version 1), 65.6 (Version 2)."""
    return Recipe(
        "sup100",
        steps=epochs(90, 256),
        batch=LABELLED_ONLY,
        images=Images(256),
        loss=SUPERVISED,
        optimiser=schedule(256, 0.1, 1e-4, 5, (30, 60, 80)),
    )


def sup_rot100() -> Recipe:
    """Sup-Rot-100%: supervised with all labels, and the rotation loss on the same images.

    vivi train sup-rot100 --images I --out run/
    The paper: 68.0 (Version 1), 67.5 (Version 2)."""
    return replace(
        sup100(),
        name="sup-rot100",
        augment=CROP_AND_FLIP,
        loss=replace(SUPERVISED, frame=Rotation(), on_labelled=True),
    )


def semi_ex10() -> Recipe:
    """Semi-Ex-10%: S4L's exemplar loss on all images, supervised with a tenth of the labels.

    vivi train semi-ex10 --images I --out run/
    The paper: 65.3 (Version 1), 63.9 (Version 2)."""
    return Recipe(
        "semi-ex10",
        steps=epochs(200, 512, IMAGENET_10),
        batch=Batch(videos=512, shots=1, cores=8, source="image"),
        images=Images(512, copies=8, fraction=0.1),
        augment=replace(CROP_AND_FLIP, hsv=True),
        loss=replace(SUPERVISED, frame=Exemplar(triplets="batch-hard"), on_labelled=True),
        optimiser=schedule(512, 0.1, 1e-3, 10, (140, 160, 180), IMAGENET_10),
    )


def jigsaw() -> Recipe:
    """Jigsaw: the order of nine patches of an image.

    vivi train jigsaw --images I --out run/
    The paper: 52.5 (Version 1), 51.1 (Version 2)."""
    return Recipe(
        "jigsaw",
        steps=epochs(35, 128),
        batch=Batch(videos=128, shots=1, frames=1, cores=8, source="image"),
        augment=PATCHES,
        loss=replace(EXEMPLAR, frame=Jigsaw()),
        optimiser=schedule(128, 0.05, 1e-4, 5, (15, 25)),
    )


def rel_pat_loc() -> Recipe:
    """Rel.Pat.Loc: where a patch lies around the central one.

    vivi train rel-pat-loc --images I --out run/
    The paper: 53.5 (Version 1), 50.8 (Version 2)."""
    return replace(jigsaw(), name="rel-pat-loc", loss=replace(EXEMPLAR, frame=Location()))


FROM_IMAGES = (ex_imagenet, rot_imagenet, sup10, sup100, sup_rot100, semi_ex10, jigsaw, rel_pat_loc)
