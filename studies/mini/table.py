"""The tables of the study, from its result files, as Markdown: python studies/mini/table.py"""

from __future__ import annotations

import json
import random
import statistics
from typing import Any

from mini_runs import METHODS, SEEDS, TRIES, Run, best_try, mean_accuracy, one_try

BASELINE = "Ex-F-resampled"
DRAWS = 10_000  # of the bootstrap


def results_of(measure: str, method: str) -> list[dict[str, float]]:
    """Test accuracies by task, a dictionary for each seed that is done."""
    runs = [Run(f"{measure}-{method}-{seed}", method, "", {}, "test") for seed in range(SEEDS)]
    contents: list[dict[str, Any]] = [json.loads(run.result.read_text()) for run in runs if run.result.exists()]
    return [content["test"] for content in contents if "test" in content]


def search_table() -> None:
    print("| search, validation | tries | as it is | best | the best one's settings |\n|---|---:|---:|---:|---|")
    for method in METHODS:
        tries = [run for run in (one_try(method, number) for number in range(TRIES)) if run.result.exists()]
        if not tries:
            continue
        best = max(tries, key=lambda run: mean_accuracy(run, "validation"))
        first = one_try(method, 0)
        plain = f"{mean_accuracy(first, 'validation'):.1f}" if first.result.exists() else ""
        changed = {name: value for name, value in best.fields.items() if value != first.fields.get(name)}
        changed |= {"shot seconds": best.shot_seconds, "λ ×": best.video_weight}
        words = ", ".join(f"{name.split('.')[-1]} {value}" for name, value in changed.items())
        print(f"| {method} | {len(tries)} | {plain} | {mean_accuracy(best, 'validation'):.1f} | {words} |")


def test_table(measure: str, title: str) -> None:
    """Means over tasks, their spread over seeds, and the paired difference to the baseline."""
    baseline = results_of(measure, BASELINE)
    print(f"\n| {title} | seeds | mean | minus {BASELINE}, with 95 % interval |\n|---|---:|---:|---:|")
    for method in METHODS:
        seeds = results_of(measure, method)
        if not seeds:
            continue
        means = [statistics.mean(seed.values()) for seed in seeds]
        difference = "" if method == BASELINE or not baseline else paired_difference(seeds, baseline)
        spread = f" ({min(means):.1f}–{max(means):.1f})" if len(means) > 1 else ""
        print(f"| {method} | {len(seeds)} | {statistics.mean(means):.1f}{spread} | {difference} |")


def paired_difference(seeds: list[dict[str, float]], baseline: list[dict[str, float]]) -> str:
    """The mean difference over tasks; its interval by a bootstrap over tasks and over the seeds of both."""
    tasks, generator = sorted(seeds[0]), random.Random(0)

    def mean(some: list[str], ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> float:
        return statistics.mean(
            statistics.mean(seed[task] for seed in ours) - statistics.mean(seed[task] for seed in theirs)
            for task in some
        )

    draws = sorted(
        mean(*(generator.choices(what, k=len(what)) for what in (tasks, seeds, baseline)))  # type: ignore[arg-type]
        for _ in range(DRAWS)
    )
    low, high = draws[round(0.025 * DRAWS)], draws[round(0.975 * DRAWS)]
    return f"{mean(tasks, seeds, baseline):+.1f} [{low:+.1f}, {high:+.1f}]"


if __name__ == "__main__":
    search_table()
    if any(best_try(method) for method in METHODS):
        test_table("test", "linear probe, test")
        test_table("finetune", "fine-tuned, test")
