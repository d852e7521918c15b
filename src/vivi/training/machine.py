"""What a run needs to know that is not its recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vivi.errors import check_ranges


@dataclass(frozen=True)
class Machine:
    """How a run is carried out: all of it may differ when resuming, and changes the result by rounding alone."""

    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""
    threads: int = 0
    """Threads that read frames, and decode them where the GPU does not; 0: one for each core, up to 4."""
    decode: Literal["auto", "gpu", "cpu"] = "auto"
    """Who decodes JPEGs; auto: where there is a GPU, whoever is faster while it trains, tried at the start."""
    resident: Literal["auto", "on", "off"] = "auto"
    """Keep all frames decoded in the memory of the GPU, or of the host; auto: if they fit and the run sees enough."""
    micro_batch: int = 0
    """How many of the recipe's cores to compute at once; 0: as many as fit into memory."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the encoder's arithmetic; auto: bfloat16 on a GPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the encoder with torch.compile; auto: on a GPU."""
    log_every: int = 10
    """Steps between two lines of metrics.jsonl."""
    monitor_every: int = 200
    """Steps between two looks at held-out videos (retrieval, collapse)."""
    checkpoint_every: int = 500
    """Steps between two checkpoints."""
    keep: int = 3
    """How many checkpoints to keep."""

    def compiles(self, on_gpu: bool) -> bool:
        return self.compile == "on" or (self.compile == "auto" and on_gpu)

    def check(self) -> None:
        whole = (1, 10**9)
        check_ranges(self, {"threads": (0, 1024), "micro_batch": (0, 10**9), "keep": whole})
        check_ranges(self, {"log_every": whole, "monitor_every": whole, "checkpoint_every": whole})
