"""The numbers that tell whether training works, against slow and obvious ways to compute them."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vivi.data.index import open_index
from vivi.prepare.corpus import Corpus
from vivi.train.monitor import (
    Watched,
    choose_shots,
    effective_rank,
    held_out_frames,
    measure_features,
    middle_squares,
    retrieval,
    spread,
)

SIZES = [(2, 1), (7, 3), (30, 8), (20, 50), (300, 16)]


def features(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + 0.3


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_spread_is_the_deviation_of_directions(n: int, d: int) -> None:
    directions = [[x / math.hypot(*row) for x in row] for row in features(n, d).tolist()]
    deviations = []
    for column in zip(*directions, strict=True):
        mean = sum(column) / n
        deviations.append(math.sqrt(sum((x - mean) ** 2 for x in column) / (n - 1)))
    assert float(spread(features(n, d))) == pytest.approx(math.sqrt(d) * sum(deviations) / d, rel=1e-4, abs=1e-6)


def test_spread_is_one_for_random_directions_and_none_for_a_collapsed_encoder() -> None:
    random = torch.randn(2000, 64, generator=torch.Generator().manual_seed(0))
    assert float(spread(random)) == pytest.approx(1, abs=0.02)
    assert float(spread(torch.ones(100, 64) * torch.rand(100, 1) + 1)) < 1e-4


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_effective_rank_is_the_entropy_of_singular_values(n: int, d: int) -> None:
    rows = features(n, d).double().numpy()
    values = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    entropy = 0.0
    for value in values:
        share = value / values.sum()
        if share > 1e-9:
            entropy -= share * math.log(share)
    assert float(effective_rank(features(n, d))) == pytest.approx(math.exp(entropy), rel=1e-4)


def test_effective_rank_counts_the_dimensions_in_use() -> None:
    # k directions used alike, both signs of each, in a space of 40 turned at random.
    turn = torch.linalg.qr(features(40, 40)).Q
    for k in (1, 2, 5, 40):
        used = torch.cat([turn[:k], -turn[:k]])
        assert float(effective_rank(used + 3)) == pytest.approx(k, rel=1e-3)
    assert float(effective_rank(torch.full((50, 40), 0.1))) == 0
    # The rounding of nearly equal features is not taken for dimensions.
    assert float(effective_rank(1 + 1e-8 * features(50, 40).double())) == 0


def test_features_that_are_not_finite_have_no_rank_and_no_spread() -> None:
    for value in (math.nan, math.inf):
        broken = features(20, 8)
        broken[3, 2] = value
        assert math.isnan(float(effective_rank(broken))) and math.isnan(float(spread(broken)))


def slow_retrieval(vectors: Tensor, videos: Tensor, shots: Tensor) -> tuple[float, float, int] | None:
    hits, chances = [], []
    n = len(vectors)
    for i in range(n):
        others = [j for j in range(n) if (videos[j], shots[j]) != (videos[i], shots[i])]
        right = [j for j in others if videos[j] == videos[i]]
        if not right:
            continue
        cosines = [float(torch.cosine_similarity(vectors[i], vectors[j], dim=0)) for j in others]
        nearest = others[max(range(len(others)), key=lambda k: cosines[k])]
        hits.append(nearest in right)
        chances.append(len(right) / len(others))
    return (sum(hits) / len(hits), sum(chances) / len(chances), len(hits)) if hits else None


@pytest.mark.parametrize(("frames", "videos", "shots"), [(2, 1, 2), (12, 3, 2), (50, 8, 3), (70, 30, 2), (40, 5, 1)])
def test_retrieval_is_that_of_a_search_frame_by_frame(frames: int, videos: int, shots: int) -> None:
    random = torch.Generator().manual_seed(frames)
    of_video = torch.randint(videos, (frames,), generator=random)
    of_shot = torch.randint(shots, (frames,), generator=random)
    vectors = torch.randn(videos, 6, generator=random)[of_video] + torch.randn(frames, 6, generator=random)
    expected = slow_retrieval(vectors, of_video, of_shot)
    for numbers in (of_shot, of_video * shots + of_shot):  # shots counted in their video, or in all
        found = retrieval(vectors, of_video, numbers)
        if expected is None:
            assert found is None
        else:
            assert found is not None
            assert found == pytest.approx(expected, abs=1e-6)


def test_retrieval_is_perfect_for_features_of_the_video_and_near_chance_for_random_ones() -> None:
    videos, shots = torch.arange(400) // 4, torch.arange(400) % 4
    vectors = torch.randn(100, 32, generator=torch.Generator().manual_seed(0))
    perfect = retrieval(vectors[videos], videos, shots)
    assert perfect is not None and perfect[0] == 1
    by_chance = retrieval(features(400, 32), videos, shots)
    assert by_chance is not None and by_chance[1] == pytest.approx(3 / 399)
    assert by_chance[0] < 0.04
    # The same picture in the same shot does not count.
    twins = retrieval(features(200, 32).repeat_interleave(2, 0), videos, torch.arange(400) // 2)
    assert twins is not None and twins[0] < 0.04


def chosen(counts: list[int], test: list[bool], videos: int = 128) -> tuple[list[tuple[int, int]], str]:
    first_shot = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    pairs, note = choose_shots(first_shot, np.array(test), videos)
    for video, shot in pairs:
        assert first_shot[video] <= shot < first_shot[video + 1]
    return [(video, int(shot - first_shot[video])) for video, shot in pairs], note


def test_held_out_videos_of_two_shots_are_chosen() -> None:
    pairs, note = chosen([3, 2, 1, 5, 9, 2], [True, False, True, False, True, False])
    assert pairs == [(0, 0), (0, 1), (0, 2), (4, 0), (4, 2), (4, 4), (4, 6)]
    assert note == ""


def test_of_many_videos_some_are_chosen_evenly_and_always_the_same() -> None:
    counts = np.random.default_rng(0).integers(1, 9, 5000).tolist()
    pairs, note = chosen(counts, [True] * 5000)
    videos = sorted({video for video, _ in pairs})
    assert len(videos) == 128 and note == ""
    assert all(counts[video] >= 2 for video in videos)
    assert max(np.diff([0, *videos, 5000])) < 100
    assert all(len({shot for v, shot in pairs if v == video}) == min(counts[video], 4) for video in videos)
    assert pairs == chosen(counts, [True] * 5000)[0]


def test_without_held_out_videos_of_two_shots_others_are_taken_and_that_is_said() -> None:
    pairs, note = chosen([3, 2, 1], [False, False, True])
    assert {video for video, _ in pairs} == {0, 1} and "training videos" in note
    pairs, note = chosen([1, 1, 4], [False, False, True])
    assert pairs == [(0, 0), (1, 0), (2, 0)] and "retrieval is left out" in note
    assert chosen([4], [True])[0] == chosen([], [])[0] == []


class Colours(nn.Module):
    """An encoder that sees mean colours, and notes how it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        assert images.dtype == torch.float32 and images.min() >= -1 and images.max() <= 1
        self.sizes.append(len(images))
        colours: Tensor = self.drop(self.norm(images)).mean(dim=(2, 3))
        return colours


def coloured(videos: int, shots: int) -> Watched:
    """Frames of different sizes; each video has a colour of its own."""
    random = np.random.default_rng(0)
    images, places = [], []
    for video in range(videos):
        colour = random.integers(0, 256, 3, np.uint8)
        for shot in range(shots):
            images.append(np.broadcast_to(colour, (10 + shot, 14 - video % 5, 3)).copy())
            places.append((video, shot))
    of_video, of_shot = torch.tensor(places).unbind(1)
    return Watched(middle_squares(images, 8), of_video, of_shot)


def test_watching_tells_retrieval_beside_chance_and_leaves_the_encoder_as_it_was() -> None:
    encoder = Colours()
    encoder.train()
    encoder.norm.eval()  # as when statistics are frozen
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    torch.manual_seed(0)
    state = torch.get_rng_state()
    values = measure_features(encoder, coloured(videos=100, shots=4))
    assert list(values) == ["retrieval", "retrieval_chance", "retrieval_queries", "spread", "effective_rank"]
    assert (
        values["retrieval"] > 0.95
        and values["retrieval_queries"] == 400
        and values["retrieval_chance"] == pytest.approx(3 / 399)
    )
    assert 0 < values["spread"] <= 1.1 and 1 < values["effective_rank"] <= 3
    assert encoder.sizes == [256, 144]
    assert (encoder.training, encoder.norm.training, encoder.drop.training) == (True, False, True)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert measure_features(encoder, coloured(videos=100, shots=4)) == values


def test_what_cannot_be_told_is_left_out() -> None:
    assert list(measure_features(Colours(), coloured(videos=5, shots=1))) == ["spread", "effective_rank"]
    assert measure_features(Colours(), Watched(middle_squares([], 8), *torch.zeros(2, 0))) == {}


def test_frames_are_watched_in_their_middle_squares() -> None:
    ramp = np.broadcast_to(np.arange(60, dtype=np.uint8)[:, None], (20, 60, 3)).copy()  # (height, width, 3)
    squares = middle_squares([ramp, ramp.transpose(1, 0, 2).copy()], size=20)
    middle = torch.from_numpy(ramp[:, 20:40]).permute(2, 0, 1)
    assert squares.dtype == torch.uint8
    assert torch.equal(squares[0], middle)
    assert torch.equal(squares[1], middle.transpose(1, 2))


@pytest.mark.parametrize("harm", [slice(0, 64), slice(300, 301)])  # the second leaves a JPEG that can be decoded
def test_frames_are_read_from_a_corpus_also_where_some_are_damaged(corpus: Path, tmp_path: Path, harm: slice) -> None:
    index = open_index(Corpus(corpus))
    held_out = held_out_frames(index, size=32)
    counts = np.diff(index.first_shot)
    expected = [int(v) for v in np.flatnonzero(np.asarray(index.test, bool) & (counts >= 2))]
    assert len(expected) >= 2 and sorted(set(held_out.groups.tolist())) == expected
    assert held_out.frames.shape == (sum(min(counts[v], 4) for v in expected), 3, 32, 32)
    assert "retrieval" in measure_features(Colours(), held_out)

    shutil.copytree(corpus, tmp_path / "copy")
    shard = tmp_path / "copy" / "shards" / f"{int(index.shard[expected[0]]):05d}.arrow"
    shot = int(held_out.shots[0])
    content = bytearray(shard.read_bytes())
    offsets = np.frombuffer(content, "<i4", int(index.frames[shot]) + 1, int(index.offsets_at[shot]))
    middle = int(index.data_at[shot]) + int(offsets[int(index.frames[shot]) // 2])
    del offsets
    for place in range(middle + harm.start, middle + harm.stop):
        content[place] ^= 0x10
    shard.write_bytes(content)
    damaged = held_out_frames(open_index(Corpus(tmp_path / "copy")), size=32)
    assert damaged.shots.tolist() == held_out.shots.tolist()[1:]
    assert torch.equal(damaged.frames, held_out.frames[1:])
