"""What tells that a run memorises its videos, from numbers and from real runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from corpora import Videos, make_corpus
from runs import run_here

from vivi.prepare.jpeg import encode_jpeg
from vivi.train.memorising import symptom

Lines = list[dict[str, float | None]]


def losses(values: list[float], name: str = "infonce_accuracy") -> Lines:
    return [{"loss": 1.0, name: value} for value in values]


def watched(held_out: list[float], training: list[float], chance: float = 0.01) -> Lines:
    return [
        {"retrieval": unseen, "retrieval_train": seen, "retrieval_chance": chance}
        for unseen, seen in zip(held_out, training, strict=True)
    ]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], ""),
        (losses([1.0] * 9), ""),  # too short a stretch
        (losses([1.0] * 10), "solved"),
        (losses([0.2] * 100 + [1.0] * 10), ""),  # of a long run, a tenth
        (losses([0.2] * 100 + [1.0] * 12), "solved"),
        (losses([0.99] * 20), "right 99% of the time"),
        (losses([0.97] * 20), ""),
        (losses([1.0] * 20, "order_accuracy"), "solved"),
        (losses([1.0] * 20, "rotation_accuracy"), ""),  # as it should be
        ([*losses([1.0] * 19), {"infonce_accuracy": None}], "solved"),
        (watched([0.4, 0.5, 0.5], [0.4, 0.9, 0.9]), "90% of training frames find their video, but 50%"),
        (watched([0.4, 0.5, 0.5], [0.9, 0.9, 0.9]), ""),  # these videos were easier from the start
        (watched([0.4, 0.5, 0.5], [0.4, 0.5, 0.9]), ""),  # once
        (watched([0.4, 1.0, 1.0], [0.4, 1.0, 1.0]), "every held-out frame finds its video"),
        (watched([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]), ""),
        (watched([0.4, 1.0, 1.0], [0.4, 1.0, 1.0], chance=0.1), ""),  # among so few videos it says little
    ],
)
def test_numbers_that_show_it_do(lines: Lines, said: str) -> None:
    found = symptom(lines)
    assert said in found and bool(said) == bool(found)


def corpus_of(folder: Path, videos: int, alike: bool) -> Path:
    """Videos of two shots of noise around a colour, which is that of the video, or of each shot its own."""
    rng = np.random.default_rng(0)
    made: Videos = {}
    for number in range(videos):
        colours = rng.integers(0, 256, (2, 3))
        shots = [
            np.clip(colours[0 if alike else shot] + rng.integers(-20, 20, (4, 32, 32, 3)), 0, 255) for shot in (0, 1)
        ]
        made[f"v{number:02d}"] = [[encode_jpeg(frame.astype(np.uint8), 90) for frame in shot] for shot in shots]
    make_corpus(folder, made)
    return folder


PLAIN = ("--augment.brightness", 0, "--augment.saturation", 0, "--augment.hue", 0, "--augment.contrast", 0)


def test_a_run_that_memorises_says_so_once_and_at_the_end(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", 5, alike=True)
    flags = ("--batch.shots", 2, "--batch.cores", 1, *PLAIN, "--steps", 40, "--log-every", 1)
    printed = run_here(corpus, tmp_path / "run", *flags)
    lines = [line for line in printed.splitlines() if "the video loss is solved" in line]
    assert len(lines) == 2, printed
    assert re.match(
        r"step \d+: the video loss is solved \(right \d+% of the time\): more training memorises", lines[0]
    )
    assert printed.splitlines().index(lines[1]) == len(printed.splitlines()) - 2


def test_a_run_that_has_something_left_to_learn_says_nothing(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", 16, alike=False)
    flags = ("--batch.shots", 2, "--batch.cores", 1, "--batch.videos", 8, "--steps", 40, "--log-every", 1)
    printed = run_here(corpus, tmp_path / "run", *flags)
    assert "memorises" not in printed and "step 40/40" in printed
