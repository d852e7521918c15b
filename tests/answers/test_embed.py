"""Embeddings: of the right frames, by the right encoder, the same bytes after a kill, one line for bad input."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import ENCODER, write_video
from PIL import Image
from rich.console import Console

from vivi.answers import embed as embed_module
from vivi.answers.embed import embed, plan_parts
from vivi.answers.embeddings import Embeddings, part_path
from vivi.evaluate.encoders import load_model
from vivi.evaluate.features import embed as embed_images
from vivi.prepare.corpus import Corpus
from vivi.prepare.jpeg import decode_jpeg
from vivi.prepare.piece import PrepareSettings
from vivi.prepare.prepare import PrepareExecution, prepare
from vivi.runtime.errors import UserError


def everything(corpus: Path) -> list[tuple[str, int, int, float, torch.Tensor]]:
    """Every frame of a corpus with its place, read in the plainest way, in the order of videos, shots and frames."""
    frames = []
    opened = Corpus(corpus)
    for video in sorted(opened.videos.to_pylist(), key=lambda row: row["video"]):
        for shot in opened.shots(video):
            for number, (at, jpeg) in enumerate(zip(shot.times, shot.frames, strict=True)):
                pixels = torch.from_numpy(decode_jpeg(jpeg)).permute(2, 0, 1)
                frames.append((shot.video, shot.shot, number, at, pixels))
    return frames


def expected(frames: list[torch.Tensor]) -> np.ndarray:
    model = load_model(ENCODER, None, 32)
    features = embed_images(model.backbone, frames, model.size, model.mean, model.std, "cpu")
    return features.numpy()


def line_of(*arguments: object, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        embed(*arguments, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_frame_has_a_row_with_its_place_and_features(corpus: Path, embeddings: Embeddings) -> None:
    frames = everything(corpus)
    rows = embeddings.rows(range(len(embeddings)))
    assert [(row.video, row.shot, row.frame, row.time) for row in rows] == [frame[:4] for frame in frames]
    paths = {row["video"]: row["path"] for row in Corpus(corpus).videos.to_pylist()}
    assert all(row.path == paths[row.video] for row in rows)
    vectors = embeddings.take(range(len(embeddings))).float().numpy()
    np.testing.assert_allclose(vectors, expected([frame[4] for frame in frames]), rtol=2e-3, atol=2e-3)


def test_per_shot_is_the_mean_of_its_frames(corpus: Path, embeddings: Embeddings, tmp_path: Path) -> None:
    shots = embed(corpus, ENCODER, tmp_path, per="shot", size=32, device="cpu")
    rows, vectors = embeddings.rows(range(len(embeddings))), embeddings.take(range(len(embeddings))).float()
    for number, row in enumerate(shots.rows(range(len(shots)))):
        own = [index for index, each in enumerate(rows) if (each.video, each.shot) == (row.video, row.shot)]
        mean = vectors[own].mean(dim=0)
        torch.testing.assert_close(shots.take([number])[0].float(), mean, rtol=3e-3, atol=3e-3)
        assert row.frame == len(own) // 2 and row.time == rows[own[row.frame]].time
    assert len(shots) == len({(row.video, row.shot) for row in rows})


@pytest.mark.parametrize("seed", range(5))
def test_parts_are_runs_of_whole_shots(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    most = int(rng.integers(1, 40))
    monkeypatch.setattr(embed_module, "PART_FRAMES", most)
    frames = rng.integers(1, 30, int(rng.integers(1, 60))).astype(np.int32)
    parts = plan_parts(frames)
    assert [shot for part in parts for shot in part] == [*range(len(frames))]
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        count = frames[part.start : part.stop].sum()
        assert count <= most or len(part) == 1
        if following is not None:
            assert count + frames[following.start] > most


def test_other_programs_read_the_parts(embeddings: Embeddings) -> None:
    table = pq.read_table(sorted(embeddings.folder.glob("*.parquet")), columns=["video", "shot", "time", "embedding"])
    assert table.num_rows == len(embeddings)
    assert table.schema.field("embedding").type.list_size == embeddings.about.features


def test_killed_at_any_moment_it_ends_with_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from vivi.answers import embed; embed.PART_FRAMES = 20; "
        f"embed.embed(sys.argv[1], '{ENCODER}', sys.argv[2], size=32, device='cpu')"
    )
    command = [sys.executable, "-c", script, str(corpus)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(tmp_path / "whole")], check=True, timeout=240, env=environment)
    parts = len([*(tmp_path / "whole").glob("*.parquet")])
    assert parts > 3
    killed = tmp_path / "killed"
    for some in (1, parts - 1):
        process = subprocess.Popen([*command, str(killed)], env=environment)
        while process.poll() is None and len([*killed.glob("part-?????.parquet")]) < some:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    if not is_finished(killed):
        subprocess.run([*command, str(killed)], check=True, timeout=240, env=environment)
    for path in sorted((tmp_path / "whole").iterdir()):
        assert (killed / path.name).read_bytes() == path.read_bytes()


def is_finished(folder: Path) -> bool:
    try:
        Embeddings(folder)
    except UserError:
        return False
    return True


def test_images_are_embedded_by_their_names(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("b/one.png", "a.jpg", "b/two.webp"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(path)
    (tmp_path / "images" / "broken.jpg").write_bytes(b"no image")
    console = Console(record=True, width=200)
    made = embed(tmp_path / "images", ENCODER, tmp_path / "out", size=32, device="cpu", console=console)
    rows = made.rows(range(len(made)))
    assert [row.video for row in rows] == ["a.jpg", "b/one.png", "b/two.webp"]
    assert all(Path(row.path).is_file() for row in rows)
    assert "left out 1 of 4 frames that cannot be read: the first is 'broken.jpg'" in console.export_text()


def test_what_does_not_fit_is_one_line(corpus: Path, embeddings: Embeddings, tmp_path: Path) -> None:
    assert "does not exist; give a corpus" in line_of(tmp_path / "none", ENCODER, tmp_path / "out")
    out = tmp_path / "copy"
    shutil.copytree(embeddings.folder, out)
    assert "holds embeddings at 32 px" in line_of(corpus, ENCODER, out, size=48)
    assert "holds embeddings per frame" in line_of(corpus, ENCODER, out, size=32, per="shot")
    assert "by other weights, those of" in line_of(corpus, "untrained:resnet18", out, size=32)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    assert "holds other files and no embeddings" in line_of(corpus, ENCODER, tmp_path / "other")


def test_a_corpus_that_has_changed_is_noticed(tmp_path: Path) -> None:
    settings, quiet = PrepareSettings(rate=5, short_side=48, min_shot_seconds=0.3), Console(quiet=True)
    write_video(tmp_path / "videos" / "a.mp4", shots=2, seed=1)
    prepare([tmp_path / "videos"], tmp_path / "corpus", settings, PrepareExecution(workers=1), quiet)
    embed(tmp_path / "corpus", ENCODER, tmp_path / "out", size=32, device="cpu")
    write_video(tmp_path / "videos" / "b.mp4", shots=2, seed=2)
    prepare([tmp_path / "videos"], tmp_path / "corpus", settings, PrepareExecution(workers=1), quiet)
    line = line_of(tmp_path / "corpus", ENCODER, tmp_path / "out", size=32)
    assert "as it was before it changed; choose another --out" in line


@pytest.mark.parametrize("damage", ["cut off", "other bytes", "missing"])
def test_a_damaged_part_is_named(embeddings: Embeddings, tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(embeddings.folder, folder)
    path = part_path(folder, 0)
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    else:
        content[len(content) // 2] ^= 255
        path.write_bytes(content[: len(content) // 2] if damage == "cut off" else content)
    with pytest.raises(UserError, match="run the same vivi embed again") as caught:
        opened = Embeddings(folder)
        opened.take(range(len(opened)))
        opened.rows(range(len(opened)))
    assert str(path) in str(caught.value)
