"""Tells from a run's numbers that there is nothing left to learn from its videos: what follows is memorising."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vivi.losses import InfoNCE, Order

_SOLVED = 0.98  # share of right answers to the video loss
_STRETCH = 10  # lines of metrics, or a tenth of them if that is more
_FEW = 0.02  # chance of retrieval: among so many videos, finding one's own every time says something
_AHEAD = 0.3  # by how much the lead of training frames over held-out ones has grown

_WHAT_TO_DO = "more training memorises; more videos, a higher --rate in vivi prepare or stronger colours would help"
_CHOOSE = ", and vivi train auto chooses what fits a corpus"


def warning(lines: Sequence[Mapping[str, float | None]], auto: bool) -> str:
    """A line for whoever trains, if there is a symptom; `auto` says whether auto chose the recipe."""
    found = symptom(lines)
    return f"{found}: {_WHAT_TO_DO}{'' if auto else _CHOOSE}" if found else ""


def symptom(lines: Sequence[Mapping[str, float | None]]) -> str:
    """What says so in the metrics that were logged until now, the newest last; empty if nothing does."""
    stretch = max(_STRETCH, len(lines) // 10)
    for name in (*InfoNCE.metrics, *Order.metrics):
        right = _last(lines, name, stretch)
        if len(right) == stretch and sum(right) >= _SOLVED * stretch:
            return f"the video loss is solved (right {sum(right) / stretch:.0%} of the time)"
    held_out, training = (_last(lines, name, len(lines)) for name in ("retrieval", "retrieval_train"))
    if len(held_out) > 2 and len(training) == len(held_out):
        leads = [seen - unseen for seen, unseen in zip(training, held_out, strict=True)]
        if min(leads[-2:]) - leads[0] >= _AHEAD:
            return f"{training[-1]:.0%} of training frames find their video, but {held_out[-1]:.0%} of held-out ones"
    chance = _last(lines, "retrieval_chance", 1)
    if len(held_out) > 2 and min(held_out[-2:]) == 1 > held_out[0] and chance[0] <= _FEW:
        return "every held-out frame finds its video"
    return ""


def _last(lines: Sequence[Mapping[str, float | None]], name: str, count: int) -> list[float]:
    """The last values of a metric, of the lines that have it."""
    values: list[float] = []
    for line in reversed(lines):
        value = line.get(name)
        if value is not None and len(values) < count:
            values.append(value)
    return values[::-1]
