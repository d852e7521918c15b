"""The methods of the paper, a function each. Its docstring says what it is, the command, and what the paper reports:
the mean accuracy over the 19 tasks of VTAB, 1000 labels each, in Version 1 and in Version 2.

`C` is a corpus of the videos, `I` a folder of ImageNet (train/, val/). What is not set here is a default of
schema.py, and those are the settings of VIVI-Ex(4).
"""

from __future__ import annotations

from dataclasses import replace

from vivi.recipes.losses import InfoNCE, Order, Rotation
from vivi.recipes.schema import Augment, Batch, Encoder, Images, Loss, Optimiser, Recipe

ONE_FRAME = Batch(videos=2048, shots=1, source="frame")
TWO_SHOTS = Batch(videos=1024, shots=2)
EXEMPLAR = Loss(video=None, video_weight=0.0)
ROTATION = replace(EXEMPLAR, frame=Rotation())
FRAME_SCHEDULE = Optimiser(warmup=17_000, decay_at=(52_000, 86_000))


def ex_yt_f() -> Recipe:
    """Ex-YT-F: the exemplar loss on one frame of each video, augmented 8 times.

    vivi train ex-yt-f --corpus C --out run/
    The paper: 59.4 (Version 1), 58.1 (Version 2)."""
    return Recipe("ex-yt-f", batch=ONE_FRAME, loss=EXEMPLAR, optimiser=FRAME_SCHEDULE)


def ex_yt_s() -> Recipe:
    """Ex-YT-S: the exemplar loss on 8 consecutive frames of a shot.

    vivi train ex-yt-s --corpus C --out run/
    The paper: 61.3 (Version 1), 60.2 (Version 2)."""
    return Recipe("ex-yt-s", batch=Batch(videos=2048, shots=1), loss=EXEMPLAR)


def vivi_ex2_ord() -> Recipe:
    """VIVI-Ex(2)-Ord, also VIVI-Ex(2)-TimeArrow: exemplar, and the order of two shots.

    vivi train vivi-ex2-ord --corpus C --out run/
    The paper: 61.9 (Version 1), 60.7 (Version 2); it tried --sweep loss.video_weight=2.0,1.0,0.5"""
    return Recipe("vivi-ex2-ord", batch=TWO_SHOTS, loss=Loss(video=Order(), video_weight=0.5))


def vivi_ex2() -> Recipe:
    """VIVI-Ex(2): exemplar, and InfoNCE from the first of two shots to the second, within a core.

    vivi train vivi-ex2 --corpus C --out run/
    The paper: 62.0 (Version 1), 61.4 (Version 2); it tried --sweep loss.video_weight=0.08,0.04,0.02"""
    return Recipe("vivi-ex2", batch=TWO_SHOTS, loss=Loss(video=InfoNCE(across="core"), video_weight=0.02))


def vivi_ex4() -> Recipe:
    """VIVI-Ex(4): exemplar, and InfoNCE from the shots of a video to the next one, four shots, across all cores.

    vivi train vivi-ex4 --corpus C --out run/
    The paper: 62.5 (Version 1), 61.0 (Version 2); it tried --sweep loss.video_weight=0.04,0.02,0.01
    Ours: vivi-ex4-small on 3.9 hours of clips, quick fine-tuning on 15 tasks: 50.7, untrained 46.8 (studies/vtab)."""
    return Recipe("vivi-ex4")


def vivi_ex4_big() -> Recipe:
    """VIVI-Ex(4)-Big: VIVI-Ex(4) with an encoder of three times the width.

    vivi train vivi-ex4-big --corpus C --out run/
    The paper: 63.3 (Version 1), 61.9 (Version 2)."""
    return Recipe("vivi-ex4-big", encoder=Encoder(width=3))


def rot_yt_f() -> Recipe:
    """Rot-YT-F: the rotation loss on one frame of each video.

    vivi train rot-yt-f --corpus C --out run/
    The paper: 56.9 (Version 1), 55.6 (Version 2)."""
    return Recipe("rot-yt-f", batch=replace(ONE_FRAME, frames=1), loss=ROTATION, optimiser=FRAME_SCHEDULE)


def vivi_rot2() -> Recipe:
    """VIVI-Rot(2): rotation, and InfoNCE from the first of two shots to the second, within a core.

    vivi train vivi-rot2 --corpus C --out run/
    The paper: 57.4 (Version 1), 57.6 (Version 2); it tried --sweep loss.video_weight=0.2,0.1,0.05,0.025"""
    loss = Loss(frame=Rotation(), video=InfoNCE(across="core"), video_weight=0.05)
    return Recipe("vivi-rot2", batch=replace(TWO_SHOTS, frames=4), loss=loss)


def vivi_rot4() -> Recipe:
    """VIVI-Rot(4): rotation, and InfoNCE from the shots of a video to the next one, four shots, across all cores.

    vivi train vivi-rot4 --corpus C --out run/
    The paper: 58.9 (Version 1), 56.7 (Version 2); it tried --sweep loss.video_weight=0.32,0.16,0.08,0.04"""
    return Recipe("vivi-rot4", batch=Batch(frames=4), loss=Loss(frame=Rotation(), video_weight=0.08))


# AutoAugment on the frames instead of Inception's colours, and half of λ.


def with_autoaugment(recipe: Recipe) -> Recipe:
    loss = replace(recipe.loss, video_weight=recipe.loss.video_weight / 2)
    return replace(recipe, name=f"{recipe.name}-aa", augment=replace(recipe.augment, policy="v0"), loss=loss)


def ex_yt_f_aa() -> Recipe:
    """Ex-YT-F-AA: Ex-YT-F with AutoAugment.

    vivi train ex-yt-f-aa --corpus C --out run/
    The paper: 61.8 (Version 1), 61.9 (Version 2)."""
    return with_autoaugment(ex_yt_f())


def ex_yt_s_aa() -> Recipe:
    """Ex-YT-S-AA: Ex-YT-S with AutoAugment.

    vivi train ex-yt-s-aa --corpus C --out run/
    The paper: 62.8 (Version 1), 61.5 (Version 2)."""
    return with_autoaugment(ex_yt_s())


def vivi_ex4_aa() -> Recipe:
    """VIVI-Ex(4)-AA: VIVI-Ex(4) with AutoAugment.

    vivi train vivi-ex4-aa --corpus C --out run/
    The paper: 63.0 (Version 1), 61.7 (Version 2)."""
    return with_autoaugment(vivi_ex4())


def vivi_ex4_big_aa() -> Recipe:
    """VIVI-Ex(4)-Big-AA: VIVI-Ex(4)-Big with AutoAugment.

    vivi train vivi-ex4-big-aa --corpus C --out run/
    The paper: 64.4 (Version 1), 63.5 (Version 2)."""
    return with_autoaugment(vivi_ex4_big())


def rot_yt_f_aa() -> Recipe:
    """Rot-YT-F-AA: Rot-YT-F with AutoAugment.

    vivi train rot-yt-f-aa --corpus C --out run/
    The paper: 58.9 (Version 1), 57.7 (Version 2)."""
    return with_autoaugment(rot_yt_f())


def vivi_rot4_aa() -> Recipe:
    """VIVI-Rot-AA: VIVI-Rot(4) with AutoAugment.

    vivi train vivi-rot4-aa --corpus C --out run/
    The paper: 59.9 (Version 1)."""
    return with_autoaugment(vivi_rot4())


# Co-training with labelled images. Group norm: the batch statistics of videos and of images would not match.

CO_TRAINING = Recipe(
    "co-training",
    steps=100_000,
    encoder=Encoder("resnetv2_50x1_bit"),
    images=Images(2048),
    augment=Augment(hsv=True),
    loss=Loss(supervised_weight=1.0),
    optimiser=Optimiser(warmup=3_000, decay_at=(70_000, 85_000, 95_000)),
)


def vivi_ex4_co10() -> Recipe:
    """VIVI-Ex(4)-Co(10%): VIVI-Ex(4) co-trained with a tenth of ImageNet's labels.

    vivi train vivi-ex4-co10 --corpus C --images I --out run/
    The paper: 67.2 (Version 1), 66.3 (Version 2); it tried --sweep loss.supervised_weight=1.0,4.0,8.0,16.0"""
    return replace(
        CO_TRAINING,
        name="vivi-ex4-co10",
        images=Images(256, fraction=0.1),
        loss=Loss(supervised_weight=4.0),
        optimiser=Optimiser(lr=0.1, warmup=3_000, decay_at=(76_000, 88_000, 96_000), weight_decay=1e-3),
    )


def vivi_ex4_co100() -> Recipe:
    """VIVI-Ex(4)-Co(100%): VIVI-Ex(4) co-trained with all of ImageNet's labels.

    vivi train vivi-ex4-co100 --corpus C --images I --out run/
    The paper: 69.4 (Version 1), 69.2 (Version 2); it tried --sweep loss.supervised_weight=0.1,0.5,1.0,5.0"""
    return replace(CO_TRAINING, name="vivi-ex4-co100")


def vivi_ex4_co100_big() -> Recipe:
    """VIVI-Ex(4)-Co(100%)-Big: the same with three times the width, and AutoAugment on the labelled images.

    vivi train vivi-ex4-co100-big --corpus C --images I --out run/
    The paper: 71.7 (Version 1), 70.4 (Version 2); it tried --sweep loss.supervised_weight=0.1,0.5,1.0,5.0"""
    return replace(
        CO_TRAINING,
        name="vivi-ex4-co100-big",
        encoder=Encoder("resnetv2_50x3_bit"),
        images=Images(2048, policy="v0"),
        loss=Loss(supervised_weight=5.0),
    )


FRAMES_AND_SHOTS = (ex_yt_f, ex_yt_s, vivi_ex2_ord, vivi_ex2, vivi_ex4, vivi_ex4_big, rot_yt_f, vivi_rot2, vivi_rot4)
WITH_AUTOAUGMENT = (ex_yt_f_aa, ex_yt_s_aa, vivi_ex4_aa, vivi_ex4_big_aa, rot_yt_f_aa, vivi_rot4_aa)
CO_TRAINED = (vivi_ex4_co10, vivi_ex4_co100, vivi_ex4_co100_big)
