"""Other training loops on the frames of a corpus, with the encoder of the paper: prints JSON.

python studies/speed/peers.py CORPUS SIZE compiled|uncompiled WORKERS SECONDS
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import timm
import torch

from vivi.data.index import open_index
from vivi.prepare.corpus import Corpus

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from peers import PeerSettings, lightly_loop, plain_loop


def main() -> None:
    corpus, size, compiled, workers, seconds = sys.argv[1:]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = PeerSettings(
        size=int(size),
        frames=8,
        batch=256,
        create=partial(timm.create_model, "resnetv2_50", num_classes=0),
        device=device,
        compile=compiled == "compiled",
        workers=int(workers),
        seconds=float(seconds),
    )
    index = open_index(Corpus(Path(corpus)))
    found = {loop.__name__: asdict(loop(index, settings)) for loop in (plain_loop, lightly_loop)}
    about = {name: getattr(settings, name) for name in ("size", "batch", "compile", "workers")}
    print(json.dumps({**about, **found}, indent=1))


if __name__ == "__main__":
    main()
