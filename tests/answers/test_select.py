"""Selection: diverse, without near-duplicates, outliers and what is labelled already."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from browser import Page
from conftest import Run
from torch import Tensor
from torch.nn import functional as F

from vivi.answers.embeddings import Embeddings
from vivi.answers.select import choose, k_means, lonely, select
from vivi.answers.settings import SelectSettings
from vivi.runtime.errors import UserError


def groups(seed: int, sizes: list[int], features: int = 12, spread: float = 0.03) -> tuple[Tensor, Tensor]:
    """Unit vectors around some directions at right angles, and which direction each is of, shuffled."""
    generator = torch.Generator().manual_seed(seed)
    of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    of = of[torch.randperm(len(of), generator=generator)]
    noise = torch.randn(len(of), features, generator=generator)
    return F.normalize(torch.eye(features)[of] + spread * noise, dim=1), of


NONE = torch.empty(0, 12)


@pytest.mark.parametrize("seed", range(5))
def test_every_group_is_chosen_from_before_any_twice(seed: int) -> None:
    vectors, of = groups(seed, [300, 40, 25, 60, 20])
    chosen = choose(vectors, NONE, SelectSettings(count=5, outliers=0.0, near_duplicate=1.0, seed=seed))
    assert sorted(of[chosen].tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_known_is_not_chosen_again(seed: int) -> None:
    vectors, of = groups(seed, [300, 40, 25, 60, 20])
    known = F.normalize(torch.eye(12)[[0, 3]], dim=1)
    chosen = choose(vectors, known, SelectSettings(count=3, outliers=0.0, near_duplicate=1.0, seed=seed))
    assert sorted(of[chosen].tolist()) == [1, 2, 4]


@pytest.mark.parametrize("seed", range(5))
def test_outliers_are_left_out_or_the_only_ones(seed: int) -> None:
    vectors, of = groups(seed, [100, 80, 60, 1, 1])
    outliers = set(torch.nonzero(of >= 3).flatten().tolist())
    settings = SelectSettings(count=8, outliers=0.03, near_duplicate=1.0, seed=seed)
    assert not outliers & set(choose(vectors, NONE, settings))
    only = choose(vectors, NONE, SelectSettings(count=2, only_outliers=True, near_duplicate=1.0))
    assert set(only) == outliers


@pytest.mark.parametrize("seed", range(5))
def test_no_two_near_duplicates_are_chosen(seed: int) -> None:
    vectors, _ = groups(seed, [50, 50, 50], spread=0.3)
    chosen = choose(vectors, vectors[:2], SelectSettings(count=150, outliers=0.0, near_duplicate=0.9, seed=seed))
    similarity = vectors[chosen] @ vectors[chosen].T - 2 * torch.eye(len(chosen))
    assert similarity.max() < 0.9 and (vectors[chosen] @ vectors[:2].T).max() < 0.9
    left = [index for index in range(150) if index not in chosen and index > 1]
    taken = torch.cat([vectors[chosen], vectors[:2]])
    assert all((taken @ vectors[index]).max() >= 0.9 for index in left)  # no other could be added


@pytest.mark.parametrize("seed", range(3))
def test_loneliness_is_the_distance_to_the_nearest_ten(seed: int) -> None:
    vectors, _ = groups(seed, [30, 20], spread=0.5)
    expected = []
    for index, vector in enumerate(vectors):
        others = torch.cat([vectors[:index], vectors[index + 1 :]]) @ vector
        expected.append(1 - float(others.sort(descending=True).values[:10].mean()))
    torch.testing.assert_close(lonely(vectors), torch.tensor(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_k_means_ends_where_centres_are_means(seed: int) -> None:
    vectors, _ = groups(seed, [30, 20, 10])
    centres = k_means(vectors, NONE, 3, seed)
    nearest = (vectors @ centres.T).argmax(dim=1)
    for number in range(3):
        mean = F.normalize(vectors[nearest == number].mean(dim=0), dim=0)
        torch.testing.assert_close(centres[number], mean, rtol=1e-4, atol=1e-5)


def test_the_command_writes_frames_a_list_and_a_page(embeddings: Embeddings, tmp_path: Path, vivi: Run) -> None:
    settings = SelectSettings(count=5, near_duplicate=1.0)
    rows = select(embeddings, settings, device="cpu")
    words = ["select", "--embeddings", embeddings.folder, "--count", 5, "--near-duplicate", 1.0, "--device", "cpu"]
    done = vivi(*words, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "out" / "selected.csv", newline="") as file:
        written = [*csv.DictReader(file)]
    assert [(row["video"], int(row["shot"]), int(row["frame"])) for row in written] == [
        (row.video, row.shot, row.frame) for row in rows
    ]
    assert all((tmp_path / "out" / row["file"]).read_bytes()[:2] == b"\xff\xd8" for row in written)
    assert len(Page(tmp_path / "out" / "index.html").strips) == 5
    again = vivi(
        *words, "--out", tmp_path / "again", "--exclude", tmp_path / "out" / "images", "--near-duplicate", 0.0
    )
    assert again.returncode == 1 and "near-duplicates of those in --exclude" in again.stderr


def test_wrong_settings_are_one_line(embeddings: Embeddings) -> None:
    with pytest.raises(UserError, match="--count is 0; it must be between 1"):
        select(embeddings, SelectSettings(count=0))
