"""Predictions made by hand on the metadata of a benchmark, whose scores are known beforehand.

python studies/robust/handmade.py METADATA
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from vivi.evaluate.vid_robust.evaluate import evaluate_robustness
from vivi.evaluate.vid_robust.settings import Robustness


def main() -> None:
    metadata = Path(sys.argv[1])
    pmsets: dict[str, list[str]] = json.loads((metadata / "pmsets.json").read_text())
    labels: dict[str, list[int]] = json.loads((metadata / "labels.json").read_text())
    classes = 1 + max(label for right in labels.values() for label in right)
    right = {frame: some[0] for frame, some in labels.items()}
    wrong = {frame: min({*range(classes)} - {*some}) for frame, some in labels.items()}
    first = {neighbours[0] for neighbours in pmsets.values() if neighbours}
    made = {
        "all right": right,
        "all wrong": wrong,
        "one wrong neighbour in each set": {frame: (wrong if frame in first else right)[frame] for frame in right},
        "every 100th frame missing": {frame: right[frame] for n, frame in enumerate(sorted(right)) if n % 100},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, predictions in made.items():
            file = Path(folder) / "predictions.json"
            file.write_text(json.dumps(predictions))
            subject = Robustness(predictions=file, metadata=metadata, name=name, out=Path(folder) / "results")
            evaluate_robustness(subject, Console(width=200))


if __name__ == "__main__":
    main()
