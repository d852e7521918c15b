"""How close does fine-tuning come to the encoder alone, and how long does VTAB take? On a GPU:

    python studies/vtab/speed.py --task /disk/vtab-1k/caltech101 --json speed.json

The encoder alone is compiled, bfloat16 and channels_last, fed with random input that is already on the device:
forward, backward and SGD. Fine-tuning is what vivi evaluate vtab does with a real task, from its images on the device
to updated weights, and is one whole run of the protocol. Both in one process, the encoder before and after.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from rich.console import Console

from vivi.evaluate.encoders import LEARNING_RATES, load_model
from vivi.evaluate.features import Pictures
from vivi.evaluate.finetune import Tuner, Tuning
from vivi.evaluate.results import Setting
from vivi.evaluate.settings import Sweep
from vivi.evaluate.tasks import VTAB
from vivi.evaluate.tasks.examples import Examples, Task
from vivi.evaluate.tasks.lists import read_task
from vivi.evaluate.vtab import sweep_seconds
from vivi.runtime.distributed import choose_device
from vivi.runtime.progress import duration

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from encoder import encoder_alone


@dataclass(frozen=True)
class Speed:
    """Measures on the present device."""

    task: Path
    """A task in VTAB-1k layout."""
    model: str = "resnetv2_50"
    size: int = 224
    steps: int = 2500
    batch: int = 512
    device: str = "auto"
    json: Path | None = None

    def run(self, console: Console) -> None:
        device = choose_device(self.device)
        alone = [self.encoder_alone(device)]
        console.print(f"encoder alone: {alone[0]:,.0f} images/s in batches of {self.batch}")
        finetuning, seconds, accuracy, memory = self.finetuning(device)
        console.print(
            f"fine-tuning: {finetuning:,.0f} images/s; {self.steps} steps and the test took {seconds:.0f} s"
        )
        alone.append(self.encoder_alone(device))
        ratio = finetuning / max(alone)
        console.print(f"encoder alone: {alone[1]:,.0f} images/s; ratio to the better of the two {ratio:.3f}")
        tasks, sweep = _whole_vtab(), Sweep()
        hours = {count: sweep_seconds(tasks, sweep, LEARNING_RATES, finetuning, count) / 3600 for count in (1, 8)}
        for count, time_ in hours.items():
            console.print(f"Version 2, 19 tasks, 4 settings, 3 seeds, on {count} of them: {duration(3600 * time_)}")
        if self.json:
            found = {
                **{name: str(value) for name, value in asdict(self).items() if name != "json"},
                "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
                "torch": torch.__version__,
                "encoder_alone": alone,
                "finetuning": finetuning,
                "ratio": ratio,
                "run_seconds": seconds,
                "accuracy": accuracy,
                "gpu_gib": memory,
                "version_2_hours": hours,
            }
            self.json.write_text(json.dumps(found, indent=1) + "\n")

    def encoder_alone(self, device: torch.device) -> float:
        """Images a second."""
        model = load_model(f"untrained:{self.model}", size=self.size).backbone
        return encoder_alone(model, self.batch, self.size, device, compile=device.type == "cuda")

    def finetuning(self, device: torch.device) -> tuple[float, float, float, float]:
        """Images a second after the first steps, seconds of the whole run, accuracy, and GiB of memory."""
        task = read_task(self.task)
        model = load_model(f"untrained:{self.model}", size=self.size)
        tuner = Tuner(model, device, compile=device.type == "cuda")
        train, test = (Pictures(part, self.size, False, device) for part in (task.final, task.test))
        tuning = Tuning(Setting(0.01, self.steps), batch=self.batch)
        first = min(50, self.steps // 2)
        times: dict[int, float] = {}

        def look(step: int) -> bool:
            if step in (first, self.steps):
                _wait(device)
                times[step] = time.monotonic()
            return False

        began = time.monotonic()
        accuracy = tuner.accuracy(train, test, task.classes, tuning, asked_to_stop=look)
        seconds = time.monotonic() - began
        images = min(self.batch, len(train)) * (self.steps - first)
        memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0
        return images / (times[self.steps] - times[first]), seconds, accuracy, memory


def _whole_vtab() -> list[Task]:
    """The 19 tasks by their sizes alone."""

    def some(count: int) -> Examples:
        return Examples((), torch.zeros(count, dtype=torch.int64))

    return [
        Task(d.name, d.title, d.group, d.classes, "lists", some(800), some(200), some(1000), some(d.test))
        for d in VTAB
    ]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    tyro.cli(Speed).run(Console(width=160))
