"""Scores the shot detector on videos whose boundaries are known.

    python studies/shots/score.py FOLDER... [--rates 1 5] [--scenedetect] [--json scores.json]

A folder holds videos and `truth.json`: for each file its `kind` and its `boundaries` in seconds (a fade is a pair
of start and end). Predictions and truth are matched one to one: a predicted boundary lies midway between two samples,
hits a cut within the tolerance, and a fade from its start less the tolerance to its end plus the tolerance. A flash
is no boundary. "all" pools the counts of all kinds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vivi.prepare.decode import sample_frames
from vivi.prepare.shots import HistogramShotDetector

Boundary = float | tuple[float, float]
SCENEDETECT_TOLERANCE = 0.25


@dataclass
class Counts:
    """How many boundaries were hit, predicted and true."""

    hits: int = 0
    predicted: int = 0
    true: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.hits + other.hits, self.predicted + other.predicted, self.true + other.true)

    def scores(self) -> dict[str, float]:
        """Precision, recall and F1; nothing to find and nothing found is perfect."""
        precision = self.hits / self.predicted if self.predicted else float(self.true == 0)
        recall = self.hits / self.true if self.true else 1.0
        f1 = 2 * self.hits / (self.predicted + self.true) if self.predicted + self.true else 1.0
        return {"precision": round(precision, 4), "recall": round(recall, 4), "f1": round(f1, 4)}


def count_hits(predicted: Sequence[float], true: Sequence[Boundary], tolerance: float) -> int:
    """The size of the largest one-to-one match of predictions with true boundaries.

    Giving each true boundary, in the order of their latest allowed times, the earliest prediction that is left and
    allowed is optimal: a later one could only be of more use to those that follow.
    """
    slack = tolerance + 1e-9  # times are sums of binary fractions
    allowed = sorted(
        ((b[0] - slack, b[1] + slack) if isinstance(b, tuple) else (b - slack, b + slack) for b in true),
        key=lambda interval: interval[1],
    )
    left = sorted(predicted)
    hits = 0
    for earliest, latest in allowed:
        found = next((p for p in left if earliest <= p <= latest), None)
        if found is not None:
            left.remove(found)
            hits += 1
    return hits


def tolerance_at(rate: float) -> float:
    """A quarter of a second at 5 Hz, a second at 1 Hz: about one sample."""
    return 0.25 if rate >= 5 else 1.0 / min(rate, 4.0)


def detect(path: Path, rate: float, threshold: float | None = None) -> list[float]:
    """The boundaries that Vivi finds in a video from frames sampled at `rate`."""
    detector = HistogramShotDetector(rate) if threshold is None else HistogramShotDetector(rate, threshold)
    times: list[float] = []
    starts: list[int] = []
    for frame in sample_frames(path, rate=rate):
        times.append(frame.time)
        starts += detector.add(frame.time, frame.image)
    starts += detector.finish()
    return [(times[i - 1] + times[i]) / 2 for i in starts]


def scenedetect_boundaries(path: Path, name: str) -> list[float]:
    """The boundaries that one of PySceneDetect's detectors finds with its own settings in all frames."""
    import scenedetect

    detector = getattr(scenedetect.detectors, f"{name.capitalize()}Detector")()
    scenes = scenedetect.detect(str(path), detector)
    return [start.seconds for start, _ in scenes[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description="Score the shot detector on videos with known boundaries.")
    parser.add_argument("folders", nargs="+", type=Path, help="folders with videos and truth.json")
    parser.add_argument("--rates", nargs="+", type=float, default=[1.0, 5.0], help="sampling rates in Hz")
    parser.add_argument("--threshold", type=float, help="instead of the detector's own")
    parser.add_argument("--scenedetect", action="store_true", help="PySceneDetect's detectors as well")
    parser.add_argument("--files", action="store_true", help="print what was missed and invented in each file")
    parser.add_argument("--json", type=Path, help="write the scores here")
    arguments = parser.parse_args()

    results: list[dict[str, object]] = []
    for folder in arguments.folders:
        truth_file = folder / "truth.json"
        if not truth_file.is_file():
            sys.exit(f"{folder} has no truth.json")
        truth = json.loads(truth_file.read_text())
        methods: list[tuple[str, float | None, float]] = [
            (f"vivi {rate:g} Hz", rate, tolerance_at(rate)) for rate in arguments.rates
        ]
        if arguments.scenedetect:
            for name in ("histogram", "hash", "content", "adaptive"):
                methods.append((f"scenedetect {name}", None, SCENEDETECT_TOLERANCE))
        for method, rate, tolerance in methods:
            counts: dict[str, Counts] = {}
            for name, entry in sorted(truth.items()):
                path = folder / name
                true = [tuple(b) if isinstance(b, list) else float(b) for b in entry["boundaries"]]
                predicted = (
                    scenedetect_boundaries(path, method.split()[1])
                    if rate is None
                    else detect(path, rate, arguments.threshold)
                )
                file_counts = Counts(count_hits(predicted, true, tolerance), len(predicted), len(true))
                counts[entry["kind"]] = counts.get(entry["kind"], Counts()) + file_counts
                if arguments.files and file_counts.hits < max(file_counts.predicted, file_counts.true):
                    print(f"  {name}: predicted {[round(p, 2) for p in predicted]}, true {true}")
            counts = {"all": sum(counts.values(), Counts())} | counts
            scores = {kind: c.scores() for kind, c in counts.items()}
            results.append({"folder": folder.name, "method": method, "tolerance": tolerance, "scores": scores})
            print(
                f"{folder.name:12} {method:22} ±{tolerance:g} s  "
                + "  ".join(
                    f"{kind} {s['f1']:.3f} (P {s['precision']:.3f} R {s['recall']:.3f})" for kind, s in scores.items()
                ),
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
