"""vivi classify run: a classifier and footage → labels of frames, shots and videos, and a page of the most and the
least certain ones.

    footage ──vivi embed──▶ embeddings ──linear layer, softmax──▶ frames.parquet ──means──▶ shots.csv, videos.csv
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

from vivi.answers.embed import embed
from vivi.answers.embeddings import Embeddings, Row
from vivi.answers.footage import PLACE
from vivi.answers.page import Section, open_shown, write_shots_page
from vivi.evaluate.encoders import load_model
from vivi.model.files import Classifier, read_classifier
from vivi.prepare.piece import PrepareSettings
from vivi.prepare.prepare import PrepareExecution, prepare
from vivi.prepare.sources import list_sources
from vivi.report.table import Cells, csv_text
from vivi.runtime.errors import UserError
from vivi.runtime.storage import StorageError, locked, storage, write_atomically

SHOWN = 4  # shots of each class that are the most certain, and as many that are the least
_MOST_CLASSES = 50  # on the page


@dataclass(frozen=True)
class LabelledShot:
    """The mean of the probabilities of a shot's frames."""

    row: Row  # its middle frame
    until: float  # the time of its last frame
    probabilities: NDArray[np.float32]  # (classes,)
    frames: int


def label_footage(
    classifier: Path | str,
    footage: Path | str,
    out: Path | str,
    *,
    device: str = "auto",
    console: Console | None = None,
) -> Path:
    """Labels every frame, shot and video of some footage; returns the page."""
    out, console = Path(out), console or Console(quiet=True)
    layer = read_classifier(Path(classifier))
    with locked(out, "vivi classify"):
        embeddings = _embeddings(Path(classifier), Path(footage), out, device, console)
        try:
            shots = [*_shots(write_frames(out / "frames.parquet", embeddings, layer))]
            _write_csv(out / "shots.csv", [_record(shot, layer, shot=True) for shot in shots])
            videos = mean_over_videos(shots)
            _write_csv(out / "videos.csv", [_record(video, layer, shot=False) for video in videos])
        except StorageError as error:
            raise UserError(f"the labels cannot be written: {error}; the same command goes on") from None
        console.print(_counts(shots, videos, layer))
        return _write_page(out, embeddings, shots, layer)


def _embeddings(classifier: Path, footage: Path, out: Path, device: str, console: Console) -> Embeddings:
    """What the classifier's encoder makes of the footage; of videos, a corpus is made first."""
    if (footage / "embeddings.json").is_file():
        embeddings = Embeddings(footage)
        if embeddings.about.checksum != load_model(str(classifier), size=embeddings.about.size).checksum:
            raise UserError(
                f"{footage} holds embeddings by {embeddings.about.encoder}, not by the encoder of {classifier}; "
                "give the footage itself"
            )
        if embeddings.about.per != "frame":
            raise UserError(f"{footage} holds a vector for each shot; a classifier wants those of frames")
        return embeddings
    if _is_video(footage):
        prepare([footage], out / "corpus", PrepareSettings(), PrepareExecution(), console)
        footage = out / "corpus"
    return embed(footage, str(classifier), out / "embeddings", device=device, console=console)


def _is_video(path: Path) -> bool:
    """Whether it is a video, or a folder of videos and not of images; a corpus is neither."""
    if (path / "corpus.json").exists():
        return False
    sources, _ = list_sources([path]) if path.is_dir() or path.suffix.lower() not in (".txt", ".csv") else ([], [])
    return any(not source.problem for source in sources)


# --- frames ---


Labelled = tuple[pa.Table, NDArray[np.float32]]
"""Where some frames are from, and their probabilities (n, classes)."""


def write_frames(path: Path, embeddings: Embeddings, classifier: Classifier) -> Iterator[Labelled]:
    """Writes a row for each frame, and gives the parts of the table as it goes."""
    classes = len(classifier.classes)
    vector = pa.list_(pa.field("element", pa.float32()), classes)
    added = [("label", pa.string()), ("probability", pa.float32()), ("probabilities", vector)]
    columns = pa.schema([*PLACE, pa.field("path", pa.string()), *(pa.field(*pair) for pair in added)])
    columns = columns.with_metadata({"classes": "\n".join(classifier.classes)})
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    names = np.array(classifier.classes, dtype=object)
    with storage(path):
        try:
            with pq.ParquetWriter(temporary, columns, compression="zstd") as writer:
                for part in range(embeddings.about.parts):
                    places = embeddings.columns(part, [*PLACE.names, "path"])
                    probabilities = _probabilities(embeddings.vectors(part), classifier)
                    best = probabilities.argmax(axis=1) if len(probabilities) else np.zeros(0, np.int64)
                    values = pa.FixedSizeListArray.from_arrays(pa.array(probabilities.reshape(-1)), type=vector)
                    shares = probabilities.max(axis=1) if len(probabilities) else np.zeros(0, np.float32)
                    arrays = [*places.combine_chunks().columns, pa.array(names[best]), pa.array(shares), values]
                    writer.write_table(pa.Table.from_arrays(arrays, schema=columns))
                    yield places, probabilities
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _probabilities(vectors: Tensor, classifier: Classifier) -> NDArray[np.float32]:
    logits = vectors.float() @ classifier.weight.T + classifier.bias
    probabilities: NDArray[np.float32] = torch.softmax(logits, dim=1).numpy()
    return probabilities


# --- shots and videos ---


def _shots(parts: Iterator[Labelled]) -> Iterator[LabelledShot]:
    """The shots of the frames: parts hold whole ones."""
    first = 0
    for places, probabilities in parts:
        rows = places.to_pylist()
        keys = [(row["video"], row["shot"]) for row in rows]
        starts = [index for index, key in enumerate(keys) if index == 0 or key != keys[index - 1]]
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            middle = (start + end) // 2
            row = Row(first + middle, **rows[middle])
            mean = probabilities[start:end].mean(axis=0)
            yield LabelledShot(row, rows[end - 1]["time"], mean, end - start)
        first += len(rows)


def mean_over_videos(shots: list[LabelledShot]) -> list[LabelledShot]:
    """The means over the frames of each video."""
    by_video: dict[str, list[LabelledShot]] = {}
    for shot in shots:
        by_video.setdefault(shot.row.video, []).append(shot)
    videos = []
    for own in by_video.values():
        frames = [shot.frames for shot in own]
        mean = np.average([shot.probabilities for shot in own], axis=0, weights=frames).astype(np.float32)
        videos.append(LabelledShot(own[0].row, own[-1].until, mean, sum(frames)))
    return videos


def _record(labelled: LabelledShot, classifier: Classifier, shot: bool) -> Cells:
    row, best = labelled.row, int(labelled.probabilities.argmax())
    place: Cells = {"video": row.video, "shot": row.shot, "time": row.time} if shot else {"video": row.video}
    label: Cells = {"label": classifier.classes[best], "probability": float(labelled.probabilities[best])}
    return {**place, **label, "frames": labelled.frames, "path": row.path}


def _write_csv(path: Path, records: list[Cells]) -> None:
    write_atomically(path, csv_text(records).encode("utf-8", "replace"), sync=False)


def _counts(shots: list[LabelledShot], videos: list[LabelledShot], classifier: Classifier) -> Table:
    """How many shots and videos have each label."""
    table = Table("label", "shots", "videos")
    for column in table.columns[1:]:
        column.justify = "right"
    counted = [
        np.bincount([int(each.probabilities.argmax()) for each in some], minlength=len(classifier.classes))
        for some in (shots, videos)
    ]
    for label in np.argsort(-counted[0], kind="stable").tolist():
        if counted[0][label] or counted[1][label]:
            table.add_row(classifier.classes[label], f"{counted[0][label]:,}", f"{counted[1][label]:,}")
    return table


def _write_page(out: Path, embeddings: Embeddings, shots: list[LabelledShot], classifier: Classifier) -> Path:
    frames = open_shown(embeddings, out)
    by_label: dict[int, list[LabelledShot]] = {}
    for shot in sorted(shots, key=lambda shot: -float(shot.probabilities.max())):
        by_label.setdefault(int(shot.probabilities.argmax()), []).append(shot)
    most = sorted(by_label, key=lambda label: -len(by_label[label]))[:_MOST_CLASSES]
    sections = []
    for label in most:
        own = by_label[label]
        shown = own if len(own) <= 2 * SHOWN else own[:SHOWN] + own[-SHOWN:]
        strips = [frames.show(shot.row, f"{100 * float(shot.probabilities.max()):.0f} %") for shot in shown]
        intro = f"{len(own):,} shots; " + ("all of them" if shown is own else "the most and the least certain")
        sections.append(Section(classifier.classes[label], intro + ".", strips))
    intro = f"{len(shots):,} shots by the most likely of {len(classifier.classes):,} classes, with its probability."
    return write_shots_page(out, "vivi classify", "Labelled shots", intro, sections)
