"""The learning rate, a pure function of the step."""

from __future__ import annotations

from vivi.recipes import Optimiser


def learning_rate(step: int, settings: Optimiser) -> float:
    """Of step 0, 1, ...: linear warm-up from 0, then one more factor from each step of `decay_at` on."""
    if step < settings.warmup:
        return settings.lr * step / settings.warmup
    decays = sum(step >= at for at in settings.decay_at)
    return float(settings.lr * settings.decay_factor**decays)
