"""The synthesized world: same settings, same bytes; truth and labels that hold; folders that can be resumed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from vivi.demo import videos
from vivi.demo.synthesize import SynthesizeSettings, synthesize
from vivi.demo.tasks import TASKS, draw_task_image, task_labels
from vivi.demo.videos import plan_video, video_frames, write_video
from vivi.runtime.errors import UserError

SMALL = SynthesizeSettings(
    videos=4,
    seconds=7.0,
    seed=3,
    size=64,
    task_size=48,
    task_train=20,
    task_val=6,
    task_test=10,
    workers=1,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished folder that the tests only read."""
    out = tmp_path_factory.mktemp("synthesized") / "out"
    synthesize(out, SMALL)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def decode(path: Path) -> npt.NDArray[np.float32]:
    """All frames, small and grey enough to compare: (frames, height, width, 3)."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]).astype(np.float32)


def test_files_of_all_widths_have_the_same_bytes_with_any_number_of_workers(tmp_path: Path) -> None:
    few, widths = {"task_train": 4, "task_val": 2, "task_test": 2}, set()
    for size in (130, 144):
        settings = replace(SMALL, videos=3, seconds=2.0, seed=1, size=size, tasks=size == 130, **few)
        alone, together = tmp_path / f"{size}-alone", tmp_path / f"{size}-together"
        synthesize(alone, settings)
        synthesize(together, replace(settings, workers=3))
        assert contents(alone) == contents(together)
        for path in alone.glob("*.mp4"):
            with av.open(str(path)) as container:
                widths.add(container.streams.video[0].width)
    assert widths == {130, 174, 232, 144, 192, 256}


def test_another_seed_gives_other_files(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_video(tmp_path / f"{seed}.mp4", seed, 0, 2.0, 10, 48)
    assert (tmp_path / "0.mp4").read_bytes() != (tmp_path / "1.mp4").read_bytes()
    images = [draw_task_image("count", 2, 48, np.random.default_rng(seed)) for seed in (0, 1)]
    assert images[0].tobytes() != images[1].tobytes()


def test_videos_are_real_files_of_the_right_length_and_size(made: Path) -> None:
    truth = json.loads((made / "truth.json").read_text())
    assert list(truth) == [f"video-{k:05d}.mp4" for k in range(SMALL.videos)]
    for name, facts in truth.items():
        with av.open(str(made / name)) as container:
            stream = container.streams.video[0]
            assert stream.codec_context.name == "h264"
            assert min(stream.width, stream.height) == SMALL.size
            assert stream.average_rate == Fraction(SMALL.rate)
            frames = list(container.decode(stream))
        assert len(frames) == round(SMALL.seconds * SMALL.rate)
        assert frames[-1].time == pytest.approx(SMALL.seconds - 1 / SMALL.rate)
        assert facts["seconds"] == SMALL.seconds
        assert facts["kind"] in ("cut", "fade", "flash")


def test_frames_change_most_at_the_cuts(tmp_path: Path) -> None:
    """In every video with cuts only, the step into a new shot is larger than almost every step within one."""
    checked = 0
    for index in range(12):
        plan = plan_video(0, index, 10.0, 10)
        if plan.kind != "cut" or len(plan.shots) < 2:
            continue
        path = tmp_path / f"{index}.mp4"
        write_video(path, 0, index, 10.0, 10, 64)
        steps = np.abs(np.diff(decode(path), axis=0)).mean((1, 2, 3))  # steps[k]: from frame k to k + 1
        cuts = [round(float(time) * 10) for time in plan.boundaries(10) if not isinstance(time, list)]
        within = np.delete(steps, [cut - 1 for cut in cuts])
        assert min(steps[cut - 1] for cut in cuts) > 1.5 * np.percentile(within, 95)
        checked += 1
    assert checked >= 5


def test_a_fade_changes_gradually_between_its_times() -> None:
    index = next(k for k in range(50) if plan_video(0, k, 10.0, 10).kind == "fade")
    plan = plan_video(0, index, 10.0, 10)
    start, end = next(time for time in plan.boundaries(10) if isinstance(time, list))
    frames = [np.asarray(frame, np.float32) for frame in video_frames(0, index, 10.0, 10, 48)]
    first, last = round(start * 10), round(end * 10)
    before, after = frames[first - 1], frames[last]
    far = [float(np.abs(frame - after).mean()) for frame in frames[first - 1 : last + 1]]
    assert far[0] > far[len(far) // 2] > far[-1] == 0
    largest_step = max(np.abs(b - a).mean() for a, b in zip(frames[first - 1 : last], frames[first:], strict=False))
    assert largest_step < 0.7 * np.abs(after - before).mean()


def test_flashes_are_bright_and_no_boundaries() -> None:
    index = next(k for k in range(80) if plan_video(0, k, 10.0, 10).kind == "flash")
    plan = plan_video(0, index, 10.0, 10)
    brightness = [np.asarray(frame).mean() for frame in video_frames(0, index, 10.0, 10, 48)]
    assert plan.flashes
    for flash in plan.flashes:
        assert brightness[flash] > np.median(brightness) + 20
        assert all(shot.start + 5 <= flash < shot.stop - 5 for shot in plan.shots if shot.start <= flash < shot.stop)


def test_plans_hold_what_they_promise() -> None:
    plans = [plan_video(5, index, 20.0, 10) for index in range(300)]
    kinds = Counter(plan.kind for plan in plans)
    assert kinds["cut"] > 150 and kinds["fade"] > 30 and kinds["flash"] > 12
    for plan in plans:
        starts = [shot.start for shot in plan.shots] + [plan.frames]
        lengths = np.diff(starts) / 10
        assert lengths.min() >= 2 and lengths.max() <= 8
        assert any(shot.fade for shot in plan.shots) == (plan.kind == "fade")
    shortest = plan_video(0, 0, 1.0, 10)
    assert shortest.boundaries(10) == [] and shortest.frames == 10


def test_tasks_have_the_layout_of_vtab_1k(made: Path) -> None:
    assert sorted(path.name for path in (made / "tasks").iterdir()) == sorted(TASKS)
    for task, classes in TASKS.items():
        folder = made / "tasks" / task
        assert folder.joinpath("classes.txt").read_text().splitlines() == list(classes)
        lists = {name: (folder / f"{name}.txt").read_text() for name in ("train800", "val200", "test")}
        assert (folder / "train800val200.txt").read_text() == lists["train800"] + lists["val200"]
        assert [text.count("\n") for text in lists.values()] == [20, 6, 10]
        for line in "".join(lists.values()).splitlines():
            name, label = line.split(" ")
            assert 0 <= int(label) < len(classes)
            with Image.open(folder / name) as image:
                assert image.size == (SMALL.task_size,) * 2 and image.format == "JPEG"


def test_classes_are_balanced() -> None:
    for task, classes in TASKS.items():
        counts = Counter(task_labels(task, "test", 500, 0))
        assert len(counts) == len(classes)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_labels_differ_between_splits() -> None:
    assert task_labels("count", "train800", 50, 0) != task_labels("count", "test", 50, 0)


def test_rerun_keeps_what_is_finished_and_makes_the_rest(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settings = replace(SMALL, videos=2, tasks=False)
    synthesize(out, settings)
    kept = (out / "video-00000.mp4").stat().st_mtime_ns
    (out / "video-00001.mp4").unlink()
    (out / "truth.json").unlink()
    synthesize(out, replace(settings, workers=2))
    assert (out / "video-00000.mp4").stat().st_mtime_ns == kept
    assert (out / "video-00001.mp4").read_bytes() == (made / "video-00001.mp4").read_bytes()
    assert (out / "truth.json").exists()


def test_an_interrupted_run_leaves_whole_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def interrupted(scene: videos.Scene, share: float) -> Image.Image:
        drawn.append(share)
        if len(drawn) > 30:
            raise KeyboardInterrupt
        return Image.new("RGB", scene.size)

    out, settings = tmp_path / "out", replace(SMALL, videos=2, seconds=2.0, tasks=False)
    monkeypatch.setattr(videos, "render", interrupted)
    with pytest.raises(KeyboardInterrupt):
        synthesize(out, settings)
    assert sorted(path.name for path in out.iterdir()) == ["synthesize.json", "video-00000.mp4"]
    assert len(decode(out / "video-00000.mp4")) == 20
    monkeypatch.undo()
    synthesize(out, settings)
    assert len(decode(out / "video-00001.mp4")) == 20


def test_other_settings_in_the_same_folder_are_refused(made: Path) -> None:
    before = contents(made)
    with pytest.raises(UserError, match=r"seed 3 there, 4 asked.*--out"):
        synthesize(made, replace(SMALL, seed=4))
    assert contents(made) == before


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.mp4").write_bytes(b"mine")
    with pytest.raises(UserError, match="holds other files"):
        synthesize(tmp_path, SMALL)
    with pytest.raises(UserError, match="is a file"):
        synthesize(tmp_path / "holiday.mp4", SMALL)
    assert contents(tmp_path) == {"holiday.mp4": b"mine"}


def test_a_broken_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "synthesize.json").write_text("{")
    with pytest.raises(UserError, match=r"synthesize\.json cannot be read"):
        synthesize(tmp_path, SMALL)


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"seconds": 0.5}, "--seconds"),
        ({"rate": 0}, "--rate"),
        ({"workers": -1}, "--workers"),
        ({"task_val": 0}, "--task-val"),
    ],
)
def test_senseless_settings_fail_before_any_work(tmp_path: Path, change: dict[str, float], flag: str) -> None:
    with pytest.raises(UserError, match=flag):
        synthesize(tmp_path / "out", replace(SMALL, **change))  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_asking_for_more_videos_adds_them(tmp_path: Path) -> None:
    settings = replace(SMALL, videos=1, seconds=2.0, tasks=False)
    synthesize(tmp_path / "grown", settings)
    synthesize(tmp_path / "grown", replace(settings, videos=2))
    synthesize(tmp_path / "at-once", replace(settings, videos=2))
    grown, at_once = (
        {path.name: path.read_bytes() for path in (tmp_path / d).iterdir()} for d in ("grown", "at-once")
    )
    assert grown == at_once
