"""The training frames of a set as a list of images and classes for vivi train --images: prints it.

python studies/robust/coil_list.py COIL_PM > train.txt
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    classes, labels, frames = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("classes", "labels", "train_frames")
    )
    for frame in frames:
        print(folder / frame, classes[labels[frame][0]])


if __name__ == "__main__":
    main()
