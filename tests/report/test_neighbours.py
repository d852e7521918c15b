"""The report of runs and corpora: curves, film strips, nearest neighbours."""

from __future__ import annotations

import colorsys
import io
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from small_corpora import SETTINGS, video
from some_results import a_result, report, written

from vivi.prepare.corpus import ShotWriter, shard_path, write_settings, write_videos
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
    from vivi.model.architecture import Architecture
    from vivi.model.encoder import Encoder
    from vivi.model.files import write_encoder

    corpus, run = coloured_corpus(tmp_path / "corpus"), tmp_path / "run <1> 50%"
    run.mkdir()
    Image.new("RGB", (30, 20)).save(run / "curves.png")
    (run / "recipe.json").write_text("{}")
    architecture = Architecture("test_resnet", {}, 32)
    write_encoder(run, Encoder(architecture, architecture.create(), 0.1), "none", 0)
    results = written(tmp_path / "results", [a_result("a", "mine", [0.5], "knn")])
    page, _ = report(results, tmp_path / "page", paper=False, runs=(run,), encoders=(run,), corpus=corpus)
    for title in ("Training", "Film strips", "Nearest neighbours", "run <1> 50%"):
        assert title in page.text
    assert len(page.strips) == 4
    for file in page.files():
        assert (page.path.parent / unquote(file)).is_file(), file


def test_neighbours_are_the_nearest(tmp_path: Path) -> None:
    """To an encoder that sees the colour alone, the other shots of a video are nearest: every hit is framed."""
    from torch import nn

    from vivi.model.architecture import Architecture
    from vivi.report.neighbours import draw_neighbours

    seeing = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    architecture = Architecture("none", {}, 32, (0.5,) * 3, (0.5,) * 3)
    about = (architecture, coloured_corpus(tmp_path / "corpus"))
    caption = draw_neighbours(seeing, *about, tmp_path / "sheet.png", queries=4, nearest=2)
    assert "4 of 18 frames from 6 held-out videos" in caption and "8 of 8 are" in caption
    # By chance: 2 of the 17 frames of other shots are of the same video.
    assert f"by chance it would be {8 * 2 / 17:.1f}" in caption
    with Image.open(tmp_path / "sheet.png") as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape[1] > 500 and (pixels == (11, 138, 90)).all(axis=2).sum() > 8 * 500
    caption = draw_neighbours(seeing, *about, tmp_path / "five.png", queries=1, nearest=5)
    assert "2 of 5 are" in caption  # its video has no more
    few = coloured_corpus(tmp_path / "few", videos=3, shots=1)
    with pytest.raises(UserError, match="too few videos"):
        draw_neighbours(seeing, architecture, few, tmp_path / "no.png")
