"""Do two runs of one step agree? Compares gradients (the momentum after the first step) and batch statistics.

vivi train vivi-ex4 --corpus corpus --out one --steps 1 --batch.videos 32 --batch.cores 8
torchrun --nproc-per-node 2 -m vivi train vivi-ex4 --corpus corpus --out two --steps 1 (the same)
python studies/upstream/same_step.py one two
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from vivi.train.checkpoint import restore
from vivi.train.metrics import read_metrics


def main(first: Path, second: Path) -> None:
    states: list[dict[str, Tensor]] = []
    for run in (first, second):
        restored = restore(run / "checkpoints", print)
        assert restored is not None and restored[0] == 1, f"{run} is no run of one step"
        states.append(restored[1])
    one, two = states
    for kind, wanted in (("gradients", "optimiser."), ("batch statistics", "running_")):
        names = [name for name in one if wanted in name]
        worst = max(names, key=lambda name: difference(one[name], two[name]))
        whole = difference(torch.cat([one[n].flatten() for n in names]), torch.cat([two[n].flatten() for n in names]))
        print(f"{kind}: {whole:.1e} over all; at most {difference(one[worst], two[worst]):.1e} ({worst})")
    for a, b in zip(read_metrics(first), read_metrics(second), strict=True):
        for name in ("loss", "exemplar", "infonce", "gradient_norm"):
            if name in a:
                print(f"{name}: {a[name]:.7f} and {b[name]:.7f}")


def difference(one: Tensor, two: Tensor) -> float:
    """Norm of the difference, relative to the norm."""
    return float((one.double() - two.double()).norm() / one.double().norm().clamp(min=1e-12))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
