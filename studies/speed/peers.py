"""Other training loops on the frames of a corpus, with the encoder of the paper: prints JSON.

python studies/speed/peers.py CORPUS SIZE compiled|uncompiled WORKERS SECONDS
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from vivi.batches.index import open_index
from vivi.bench.peers import PeerSettings, lightly_loop, plain_loop
from vivi.video.corpus import Corpus


def main() -> None:
    corpus, size, compiled, workers, seconds = sys.argv[1:]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = PeerSettings(
        size=int(size),
        frames=8,
        batch=256,
        encoder="resnetv2_50",
        encoder_arguments={},
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
