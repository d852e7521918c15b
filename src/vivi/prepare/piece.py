"""From one video file to its piece of the corpus: what a worker does.

A piece is an Arrow file of the video's shots and a small JSON file that says how it went and that the piece is
complete. Both appear atomically, so a worker can be killed at any moment and its video is simply done again.
`vivi.prepare.prepare` packs the pieces into shards.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import signal
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from vivi.prepare.container import UnusableVideo
from vivi.prepare.corpus import ShotWriter, Split, VideoRow
from vivi.prepare.decode import Report, SampledFrame, VideoInfo, sample_frames
from vivi.prepare.identity import FileIdentity, identify
from vivi.prepare.jpeg import encode_jpeg
from vivi.prepare.shots import MIN_SHOT_SECONDS, THRESHOLD, HistogramShotDetector, ShotDetector
from vivi.prepare.sources import Source, text
from vivi.runtime.errors import check_ranges, first_line
from vivi.runtime.read_ahead import in_background
from vivi.runtime.storage import read_checked_json, write_checked_json

Frames = list[tuple[float, bytes]]  # the time and the JPEG file of each
# FFmpeg on a damaged file, or a network disk, may hang inside one call. A worker that makes no progress for this
# long is killed by an alarm (SIGALRM) that it sets itself.
STALL_SECONDS = 120
REPORT_SECONDS = 0.5


@dataclass(frozen=True)
class PrepareSettings:
    """What determines the content of a corpus."""

    rate: float = 1.0
    """Frames a second to sample, by presentation time."""
    short_side: int = 256
    """Frames are scaled down to this short side in pixels (never up)."""
    jpeg_quality: int = 90
    """JPEG quality of the stored frames, 1 to 95."""
    exact: bool = False
    """Decode every frame and take the nearest, instead of the nearest among reference frames."""
    shot_threshold: float = THRESHOLD
    """How different two shots must look, from 0 to 1: lower finds more boundaries."""
    min_shot_seconds: float = MIN_SHOT_SECONDS
    """Boundaries closer than this to the one before are left out."""
    max_shot_seconds: float = 0.0
    """Split longer takes into shots of this length, for uncut footage; 0 leaves them whole."""
    max_shot_frames: int = 500
    """Split any shot longer than this, so that memory stays bounded."""
    test_fraction: float = 0.1
    """Share of videos held out as the test split, by a hash of the video's name."""

    def check(self) -> None:
        """Raises a UserError for the first wrong argument."""
        ranges: dict[str, tuple[float, float]]
        ranges = {"rate": (1e-6, 1000), "short_side": (16, 4096), "jpeg_quality": (1, 95)}
        ranges |= {"shot_threshold": (1e-6, 1), "min_shot_seconds": (0, 3600), "max_shot_seconds": (0, 1e6)}
        check_ranges(self, ranges | {"max_shot_frames": (1, 1e6), "test_fraction": (0, 1)})

    @property
    def shot_cap(self) -> int:
        """The most frames a shot may have."""
        if self.max_shot_seconds == 0:
            return self.max_shot_frames
        return min(self.max_shot_frames, max(1, round(self.max_shot_seconds * self.rate)))


@dataclass(frozen=True, slots=True)
class VideoTask:
    """One video for one worker."""

    source: Source
    folder: str  # where pieces go; on a cluster, a folder all machines see
    settings: PrepareSettings
    decode_ahead: bool = False  # whether a core is free to decode the next frame while this one is encoded
    worker_memory: float = 2.0  # gigabytes that the worker may take for it
    video_minutes: float = 24 * 60.0

    @property
    def piece(self) -> Path:
        return piece_path(Path(self.folder), self.source.video)


def piece_path(folder: Path, video: str) -> Path:
    """Where the piece of a video lies; the JSON file has the same name with another suffix."""
    return folder / f"{hashlib.sha256(video.encode()).hexdigest()[:24]}.arrow"


@dataclass(frozen=True)
class PreparedVideo:
    """The outcome of a task: the video's row, and the bytes and the checksum of its piece."""

    row: VideoRow
    bytes: int = 0
    crc32: int = 0


def prepare_video(task: VideoTask, report: Report | None = None, file: FileIdentity | None = None) -> PreparedVideo:
    """Decodes one video, finds its shots, and writes its piece.

    `report` is called with the first packet, then about twice a second. `file` is what was identified before. Raises
    StorageError where the piece cannot be written; whatever is wrong with the video itself ends up in its row.
    """
    beat = heartbeat(task.video_minutes, report)
    # Before it is read: a file that changes meanwhile is a changed one to the next run.
    file = file or identify(task.source.path)
    try:
        return _write_piece(task, beat, file)
    except UnusableVideo as error:
        return finish(task, file, str(error))
    except (MemoryError, ValueError, RuntimeError, ArithmeticError, LookupError) as error:
        # PyAV raises these on some damaged files; whatever it is, it concerns this video alone.
        return finish(task, file, f"decoding failed: {type(error).__name__}: {first_line(error)}")
    finally:
        signal.alarm(0)


def heartbeat(minutes: float, report: Report | None) -> Report:
    """To be called for every packet: sets the alarm again, enforces the time limit, and reports twice a second."""
    next_report, deadline = 0.0, time.monotonic() + 60 * minutes

    def beat(share: float, seconds: float) -> None:
        nonlocal next_report
        now = time.monotonic()
        if now >= next_report:
            signal.alarm(STALL_SECONDS)
            next_report = now + REPORT_SECONDS
            if report is not None:
                report(share, seconds)
        if now > deadline:
            raise UnusableVideo(f"takes longer than {minutes:g} minutes (--video-minutes)")

    signal.alarm(STALL_SECONDS)
    return beat


def _write_piece(task: VideoTask, beat: Report, file: FileIdentity) -> PreparedVideo:
    if task.source.problem:
        raise UnusableVideo(task.source.problem)
    settings, info = task.settings, VideoInfo()
    detector = HistogramShotDetector(settings.rate, settings.shot_threshold, settings.min_shot_seconds)
    frames = sample_frames(task.source.path, settings.rate, settings.short_side, settings.exact, info, beat)
    if task.decode_ahead:  # on a core that would be idle while a frame is encoded
        frames = in_background(frames, 1)
    with ShotWriter(task.piece) as writer:
        for shot in split_into_shots(frames, detector, settings.shot_cap, settings.jpeg_quality):
            writer.add(task.source.video, writer.rows, [time for time, _ in shot], [jpeg for _, jpeg in shot])
        writer.commit()
    found = {name: getattr(info, name) for name in ("seconds", "width", "height", "codec")}
    found |= {"frames": writer.frames, "shots": writer.rows}
    return finish(task, file, "; ".join(info.problems), (writer.bytes, file_checksum(task.piece)), **found)


def finish(
    task: VideoTask, file: FileIdentity, reason: str, piece: tuple[int, int] | None = None, **found: Any
) -> PreparedVideo:
    """Marks a video as done: its piece is complete, with so many bytes and this checksum, or it cannot be used."""
    source = task.source
    status: Literal["ok", "skipped"] = "skipped" if piece is None else "ok"
    split = source.split or split_by_hash(source.video, task.settings.test_fraction)
    row = VideoRow(source.video, text(source.path), status, reason, split, **found, **asdict(file))
    prepared = PreparedVideo(row, *(piece or (0, 0)))
    write_checked_json(task.piece.with_suffix(".json"), asdict(prepared), sync=False)
    return prepared


def finished_piece(task: VideoTask) -> PreparedVideo | None:
    """What an earlier, interrupted run already did for this video; nothing if its file has changed since, or if the
    piece is not what was written: after a power cut it may hold anything."""
    try:
        written = read_checked_json(task.piece.with_suffix(".json"))
        prepared = PreparedVideo(VideoRow(**written["row"]), written["bytes"], written["crc32"])
        same = prepared.row.file == identify(task.source.path, prepared.row.file)
        whole = prepared.row.status == "skipped" or file_checksum(task.piece) == prepared.crc32
        return prepared if same and whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def file_checksum(path: Path) -> int:
    """The CRC-32 of a file."""
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def split_into_shots(
    frames: Iterable[SampledFrame], detector: ShotDetector, cap: int, jpeg_quality: int
) -> Iterator[Frames]:
    """The shots of a video. Takes longer than `cap` frames are split into shots of that length, the last two of them
    evenly. Never more than two such shots are held, besides what the detector looks ahead."""
    held: Frames = []
    first = 0  # index of the first frame held
    for frame in itertools.chain(frames, [None]):  # None: there are no more
        if frame is not None:
            held.append((frame.time, encode_jpeg(frame.image, jpeg_quality)))
        for boundary in detector.finish() if frame is None else detector.add(frame.time, frame.image):
            yield from _split_evenly(held[: boundary - first], cap)
            held = held[boundary - first :]
            first = boundary
        if len(held) >= 2 * cap + detector.lookahead:
            yield held[:cap]
            held = held[cap:]
            first += cap
    yield from _split_evenly(held, cap)


def _split_evenly(take: Frames, cap: int) -> Iterator[Frames]:
    parts = math.ceil(len(take) / cap)
    for part in range(parts):
        yield take[part * len(take) // parts : (part + 1) * len(take) // parts]


def split_by_hash(video: str, test_fraction: float) -> Split:
    """Train or test: the same for the same name, whatever else is in the corpus."""
    digest = hashlib.sha256(video.encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") < test_fraction * 2**64 else "train"
