"""The report of encoders and corpora: film strips, nearest neighbours, maps of frames."""

from __future__ import annotations

import colorsys
import io
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from browser import CHROMIUM, in_frames
from PIL import Image
from small_corpora import SETTINGS, video
from some_results import a_result, report, written
from torch import Tensor, nn

from vivi.model.architecture import Architecture
from vivi.model.encoder import Encoder
from vivi.model.files import write_encoder
from vivi.prepare.corpus import ShotWriter, shard_path, write_settings, write_videos
from vivi.report.neighbours import read_frames, see
from vivi.report.tsne import tsne
from vivi.runtime.errors import UserError


def coloured_corpus(folder: Path, videos: int = 6, shots: int = 3) -> Path:
    """Every video has a colour of its own in all its shots."""
    (folder / "shards").mkdir(parents=True)
    rows = []
    with ShotWriter(shard_path(folder, 0)) as writer:
        for number in range(videos):
            row, _ = video(f"<{number}>.mp4", [2] * shots, split="test")
            rows.append(replace(row, shard=0, first_row=number * shots))
            for shot in range(shots):
                red, green, blue = (
                    round(255 * part) for part in colorsys.hsv_to_rgb(number / videos, 1, 1 - shot / 20)
                )
                content = io.BytesIO()
                Image.new("RGB", (96, 64), (red, green, blue)).save(content, "JPEG")
                writer.add(row.video, shot, [2.0 * shot, 2.0 * shot + 1], [content.getvalue()] * 2)
        writer.commit()
    write_videos(folder, rows)
    write_settings(folder, dict(SETTINGS))
    return folder


def test_training_strips_and_neighbours(tmp_path: Path) -> None:
    corpus, run = coloured_corpus(tmp_path / "corpus"), tmp_path / "run <1> 50%"
    run.mkdir()
    Image.new("RGB", (30, 20)).save(run / "curves.png")
    (run / "recipe.json").write_text("{}")
    architecture = Architecture("test_resnet", {}, 32)
    write_encoder(run, Encoder(architecture, architecture.create(), 0.1), "none", 0)
    results = written(tmp_path / "results", [a_result("a", "mine", [0.5], "knn")])
    page, _ = report(results, tmp_path / "page", paper=False, runs=(run,), encoders=(run,), corpus=corpus)
    for title in ("Training", "Film strips", "Nearest neighbours", "Map of frames", "run <1> 50%"):
        assert title in page.text
    assert len(page.strips) == 4
    for file in page.files():
        assert (page.path.parent / unquote(file)).is_file(), file


class Colour(nn.Module):
    """Sees the colour alone."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(dim=(2, 3))


def test_neighbours_are_the_nearest(tmp_path: Path) -> None:
    """To an encoder that sees the colour alone, the other shots of a video are nearest."""
    architecture = Architecture("none", {}, 32, (0.5,) * 3, (0.5,) * 3)
    frames, which = read_frames(coloured_corpus(tmp_path / "corpus"), tmp_path / "frames")
    seen = see("colour", Colour(), architecture, frames, which)
    # By chance: 2 of the 17 frames of other shots are of the same video.
    assert seen.retrieval == pytest.approx((1.0, 2 / 17, 18)) and seen.which == "held-out"
    assert len(seen.rows) == 6 and len({query.video for query, _ in seen.rows}) == 6
    for query, nearest in seen.rows:
        assert [frame.video == query.video for frame, _ in nearest] == [True, True, False, False, False]
        assert {query.shot, *(frame.shot for frame, _ in nearest[:2])} == {1, 2, 3}
        cosines = [cosine for _, cosine in nearest]
        assert cosines == sorted(cosines, reverse=True) and cosines[0] > 0.99
    assert {path.name for path in (tmp_path / "frames").iterdir()} == {frame.thumbnail.file for frame in frames}
    few = coloured_corpus(tmp_path / "few", videos=3, shots=1)
    with pytest.raises(UserError, match="too few videos"):
        read_frames(few, tmp_path / "frames")


def test_the_map_keeps_neighbours_together() -> None:
    random = np.random.default_rng(0)
    of_group = np.arange(80) // 4
    features = random.normal(size=(20, 30))[of_group] + 0.1 * random.normal(size=(80, 30))
    places = tsne(features)
    assert places.shape == (80, 2) and places.min() >= 0 and places.max() <= 1
    apart = np.linalg.norm(places[:, None] - places, axis=2) + np.eye(80)
    assert (of_group[apart.argmin(axis=1)] == of_group).mean() > 0.95
    assert (tsne(features) == places).all()
    # Frames that are all alike, or only two, still have places.
    for few in (np.ones((5, 3)), random.normal(size=(2, 3))):
        assert np.isfinite(tsne(few)).all()


PROBE = """<script>
addEventListener("load", () => {
  const points = [...document.querySelectorAll("#map svg a")];
  points[0].dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
  const found = { width: innerWidth, points: points.length, peek: document.querySelectorAll("#map image").length };
  found.same = document.querySelectorAll("#map a.same").length;
  found.words = document.querySelector("#map figcaption").textContent;
  points[0].focus();
  points[0].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
  found.next = document.activeElement === points[1];
  document.querySelector("#map svg").dispatchEvent(new PointerEvent("pointerleave"));
  found.after = document.querySelectorAll("#map image").length;
  found.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  found.problems = problems;
  parent.postMessage(found, "*");
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_frame_on_the_map_is_shown_where_it_is_pointed_at(tmp_path: Path) -> None:
    corpus, run = coloured_corpus(tmp_path / "corpus"), tmp_path / "run"
    run.mkdir()
    (run / "recipe.json").write_text("{}")
    architecture = Architecture("test_resnet", {}, 32)
    write_encoder(run, Encoder(architecture, architecture.create(), 0.1), "none", 0)
    page, _ = report(None, tmp_path / "page", runs=(run,), encoders=(run,), corpus=corpus)
    assert "How does training go?" in page.text and "The paper" not in page.text
    for found in in_frames(tmp_path / "page", page.html, PROBE, (390, 1600)):
        assert found["problems"] == [] and found["overflow"] == 0
        assert (found["points"], found["same"], found["peek"], found["after"]) == (18, 3, 1, 0) and found["next"]
        assert found["words"] == "<0>.mp4, shot 1"
