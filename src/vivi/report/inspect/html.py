"""The HTML of `vivi inspect`. Everything that comes from files goes through `html.escape`."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivi.report.folders import Section, document
from vivi.report.inspect.charts import Histogram, count_histogram, duration_histogram, histogram_svg
from vivi.report.inspect.content import MAX_NAMES, Overview, ShownFrame, ShownShot, Strip
from vivi.report.inspect.style import SCRIPT, STYLE

# The table of the paper's appendix: mean and standard deviation over its YouTube-8M subset.
PAPER = {"shots per video": (25.5, 30.3), "shot duration (s)": (9.0, 25.3), "video duration (s)": (230.7, 61.7)}
MAX_REASONS = 40
# Longer lists of names start collapsed.
OPEN_NAMES = 8
SETTING_LABELS = {
    "format_version": ("Format version", ""),
    "rate": ("Sampling rate", " frames/s"),
    "short_side": ("Short side", " px"),
    "jpeg_quality": ("JPEG quality", ""),
    "exact": ("Exact frame times", ""),
    "shot_threshold": ("Shot threshold", ""),
    "min_shot_seconds": ("Shortest shot", " s"),
    "max_shot_seconds": ("Longest shot", " s"),
    "max_shot_frames": ("Most frames in a shot", ""),
    "test_fraction": ("Test fraction", ""),
}


def render(numbers: Overview, strips: Sequence[Strip]) -> str:
    """The whole page."""
    name = escape(numbers.path.resolve().name or str(numbers.path))
    parts = [
        ("statistics", "Statistics", _statistics(numbers)),
        ("strips", "Film strips", _strips(numbers, strips)),
        ("problems", "Skipped and damaged", _problems(numbers)),
        ("settings", "Settings", _settings(numbers)),
    ]
    header = f"""<h1><bdi>{name}</bdi></h1>
<p class="path"><bdi>{escape(str(numbers.path.resolve()))}</bdi></p>
{_totals(numbers)}"""
    sections = [Section(key, title, title, content) for key, title, content in parts]
    after = f"{VIEWER}\n<script>{SCRIPT}</script>"
    return document("vivi inspect", "VIVI corpus", name, STYLE, header, sections, after)


VIEWER = """<dialog id="viewer" aria-label="Frame">
<figure><img alt=""><figcaption></figcaption></figure>
<div class="controls"><button type="button" data-go="-1">← Previous</button>
<button type="button" data-go="1">Next →</button><button type="button" data-close>Close</button></div>
</dialog>"""


def _totals(numbers: Overview) -> str:
    statistics = numbers.statistics
    skipped = sum(map(len, numbers.skipped.values()))
    seconds = float(statistics.video_seconds.sum())
    tiles = [
        ("Videos", f"{numbers.videos:,}", f"{skipped:,} skipped" if skipped else "none skipped"),
        ("Footage", *_footage(seconds, numbers.videos)),
        ("Shots", f"{int(statistics.shots_per_video.sum()):,}", f"{_plural(numbers.shards, 'shard')}"),
        ("Frames", f"{statistics.frames:,}", f"{numbers.rate:g} a second"),
        (
            "On disk",
            _bytes(numbers.bytes),
            f"{_bytes(numbers.bytes / statistics.frames)} a frame" if statistics.frames else "",
        ),
        ("Train / test", f"{numbers.train:,} / {numbers.test:,}", _split_note(numbers)),
    ]
    return (
        '<dl class="totals">'
        + "".join(
            f'<div><dt>{label}</dt><dd class="value">{value}</dd><dd class="note">{note}</dd></div>'
            for label, value, note in tiles
        )
        + "</dl>"
    )


def _footage(seconds: float, videos: int) -> tuple[str, str]:
    each = f"{in_words(seconds / videos)} a video" if videos else ""
    if seconds >= 3600:
        return f"{seconds / 3600:,.1f} h", each
    return (f"{seconds / 60:.0f} min" if seconds >= 60 else in_words(seconds)), each


def _split_note(numbers: Overview) -> str:
    return f"{100 * numbers.test / numbers.videos:.0f} % held out" if numbers.videos else ""


def _statistics(numbers: Overview) -> str:
    rows = "".join(
        f'<tr><th scope="row">{_capital(quantity)}</th><td>{_mean_std(mean, std)}</td>'
        f'<td class="reference">{_mean_std(*PAPER[quantity])}</td></tr>'
        for quantity, mean, std in numbers.statistics.rows()
    )
    sampled = ""
    if numbers.shards_read < numbers.shards:
        sampled = f"<p class='hint'>Shot durations are from {numbers.shards_read:,} of {numbers.shards:,} shards.</p>"
    return f"""<div class="columns"><div class="card"><h3>Shots and durations</h3>
<table><thead><tr><th scope="col"></th><th scope="col">This corpus</th>
<th scope="col" class="reference">YT8M in the paper</th></tr></thead><tbody>{rows}</tbody></table>
<p class="hint">Mean ± standard deviation.</p>{sampled}</div>
<div class="card"><h3>What training can use</h3>{_usable(numbers)}</div></div>
{_charts(numbers)}"""


def _usable(numbers: Overview) -> str:
    """The video loss predicts across K shots of one video, so it needs videos with as many."""
    shots = numbers.statistics.shots_per_video
    lines = []
    for wanted in (2, 4):
        count = int((shots >= wanted).sum())
        share = count / len(shots) if len(shots) else 0.0
        lines.append(
            f"<div><dt>Videos with {wanted} or more shots</dt>"
            f'<dd>{count:,} <span class="reference">{100 * share:.0f} %</span></dd>'
            f'<dd class="meter" aria-hidden="true"><i style="width:{100 * share:.1f}%"></i></dd></div>'
        )
    codecs = ", ".join(f"{escape(name or 'unknown')} {count:,}" for name, count in numbers.codecs[:5]) or "none"
    more = f", {len(numbers.codecs) - 5} more" if len(numbers.codecs) > 5 else ""
    lines.append(f"<div><dt>Codecs of the source files</dt><dd class='list'>{codecs}{more}</dd></div>")
    return f'<dl class="facts">{"".join(lines)}</dl>'


def _charts(numbers: Overview) -> str:
    if not numbers.videos:
        return ""
    statistics, step = numbers.statistics, 1 / numbers.rate
    charts = [
        (
            "Shots per video",
            count_histogram(statistics.shots_per_video),
            "shots in a video",
            "videos",
            _quantiles(statistics.shots_per_video, "{:.0f}".format),
        ),
        (
            "Shot duration",
            duration_histogram(statistics.shot_seconds, step),
            "duration of a shot",
            "shots",
            _quantiles(statistics.shot_seconds, in_words),
        ),
        (
            "Video duration",
            duration_histogram(statistics.video_seconds, step),
            "duration of a video",
            "videos",
            _quantiles(statistics.video_seconds, in_words),
        ),
    ]
    return (
        '<div class="charts">'
        + "".join(
            _chart(title, histogram, x, y, caption) for title, histogram, x, y, caption in charts if histogram.counts
        )
        + "</div>"
    )


def _chart(title: str, histogram: Histogram, x_title: str, y_title: str, caption: str) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{count:,}</td></tr>'
        for name, count in zip(histogram.bins, histogram.counts, strict=True)
    )
    return (
        f'<figure class="card"><h3>{title}</h3>{histogram_svg(histogram, title, x_title, y_title)}'
        f"<figcaption>{caption}</figcaption><details><summary>As a table</summary><table><thead><tr>"
        f'<th scope="col">{_capital(x_title)}</th><th scope="col">{_capital(y_title)}</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></details></figure>"
    )


def _quantiles(values: NDArray[Any], form: Any) -> str:
    if not len(values):
        return ""
    median, most, largest = (form(float(q)) for q in np.quantile(values, [0.5, 0.9, 1.0], method="higher"))
    return f"Median {median} · 90 % up to {most} · largest {largest}"


def _strips(numbers: Overview, strips: Sequence[Strip]) -> str:
    if not strips:
        return (
            '<p class="empty">No film strips: '
            + ("none were asked for." if numbers.videos else "no video could be used.")
            + "</p>"
        )
    digits = 0 if numbers.rate <= 1 else 1 if numbers.rate <= 10 else 2
    shown = f"{_plural(len(strips), 'video')} of {numbers.videos:,}"
    return f"""<p class="intro">{shown}, sampled over the whole corpus. Each bracket is one shot; between two brackets
lies a boundary. Of long shots and long videos, some frames are left out.</p>
<p class="filter" hidden><label for="filter">Filter by name</label>
<input id="filter" type="search" autocomplete="off" spellcheck="false"><span id="shown" role="status"></span></p>
{"".join(film_strip_html(strip, digits) for strip in strips)}"""


def film_strip_html(strip: Strip, digits: int) -> str:
    video, name = strip.video, escape(strip.video.video)
    shown = sum(1 for _ in strip.frames())
    facts = [
        _plural(video.shots, "shot"),
        in_words(video.seconds),
        f"{video.width}×{video.height}",
        escape(video.codec),
        escape(video.split),
        f"{shown:,} of {_plural(video.frames, 'frame')} shown",
    ]
    reason = f'<p class="warning">Partly damaged: {escape(video.reason)}</p>' if video.reason else ""
    items, after = [], 0
    for shot in strip.shots:
        if shot.index > after:
            items.append(f'<li class="gap">{_plural(shot.index - after, "shot")} left out</li>')
        items.append(_shot(shot, digits))
        after = shot.index + 1
    return f"""<article class="strip" data-name="{escape(video.video.lower())}">
<h3><bdi>{name}</bdi></h3>
<p class="meta">{"".join(f"<span>{fact}</span>" for fact in facts if fact)}</p>{reason}
{_timeline(strip, digits)}
<div class="film" tabindex="0" role="region" aria-label="Film strip of {name}"><ol>{"".join(items)}</ol></div>
</article>"""


def _shot(shot: ShownShot, digits: int) -> str:
    left_out = shot.total_frames - len(shot.frames)
    some = f"<span>{len(shot.frames)} of {shot.total_frames:,} frames</span>" if left_out else ""
    frames = "".join(_frame(frame, shot.index, digits) for frame in shot.frames)
    return (
        f'<li class="shot"><p class="head"><b>Shot {shot.index + 1}</b>{some}</p>'
        f'<p class="when">from {clock(shot.start, digits)} · {in_words(shot.seconds)}</p>'
        f'<div class="frames">{frames}</div></li>'
    )


def _frame(frame: ShownFrame, shot: int, digits: int) -> str:
    time = clock(frame.time, digits)
    if frame.thumbnail is None:
        picture = '<span role="img" aria-label="damaged frame">damaged</span>'
        return f'<span class="frame broken">{picture}<i>{time}</i></span>'
    file, width, height = frame.thumbnail.file, frame.thumbnail.width, frame.thumbnail.height
    return (
        f'<a class="frame" href="frames/{file}"><img src="frames/{file}" width="{width}" height="{height}" '
        f'alt="Shot {shot + 1} at {time}" loading="lazy" decoding="async"><i>{time}</i></a>'
    )


def _timeline(strip: Strip, digits: int) -> str:
    """All shots of the video along its length; those shown below are filled."""
    if not strip.spans:
        return ""
    starts = [start for start, _ in strip.spans]
    end = sum(strip.spans[-1])
    scale = 1000 / (end - starts[0]) if end > starts[0] else 0.0
    marks = [round((time - starts[0]) * scale) for time in (*starts, end)]
    shown = "".join(
        f'<rect x="{marks[shot.index]}" width="{max(marks[shot.index + 1] - marks[shot.index], 1)}" height="5"/>'
        for shot in strip.shots
    )
    path = "".join(f"M{x} 0v5" for x in sorted(set(marks[1:-1])))
    label = f"Timeline: {_plural(len(strip.spans), 'shot')}, {len(strip.shots)} of them shown below"
    return (
        f'<div class="timeline"><span>{clock(starts[0], digits)}</span>'
        f'<svg viewBox="0 0 1000 5" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'<rect class="all" width="1000" height="5"/>{shown}<path d="{path}"/></svg>'
        f"<span>{clock(end, digits)}</span></div>"
    )


def _problems(numbers: Overview) -> str:
    skipped = sum(map(len, numbers.skipped.values()))
    parts = [f"<h3>Skipped <span class='count'>{skipped:,}</span></h3>"]
    if not skipped:
        parts.append('<p class="empty">No file was skipped.</p>')
    reasons = list(numbers.skipped.items())
    parts += [_names(reason, len(names), names) for reason, names in reasons[:MAX_REASONS]]
    if len(reasons) > MAX_REASONS:
        rest = sum(len(names) for _, names in reasons[MAX_REASONS:])
        parts.append(
            f'<p class="hint">{_plural(rest, "more file")} for {len(reasons) - MAX_REASONS:,} other reasons.</p>'
        )
    parts.append(f"<h3>Partly damaged <span class='count'>{numbers.partly_damaged:,}</span></h3>")
    if numbers.partly_damaged:
        lines = [f"{video}: {reason}" for video, reason in numbers.partly_damaged_examples]
        parts.append(_names("used as far as they could be decoded", numbers.partly_damaged, lines))
    else:
        parts.append('<p class="empty">Every video in the corpus was read to its end.</p>')
    return "".join(parts)


def _names(reason: str, count: int, names: Sequence[str]) -> str:
    items = "".join(f"<li><bdi>{escape(name)}</bdi></li>" for name in names[:MAX_NAMES])
    more = count - min(len(names), MAX_NAMES)
    rest = f'<p class="hint">and {more:,} more: see <code>videos.parquet</code></p>' if more else ""
    is_open = " open" if count <= OPEN_NAMES else ""
    return (
        f'<details class="reason"{is_open}><summary><span class="count">{count:,}</span> '
        f"{escape(reason) or 'no reason given'}</summary><ul>{items}</ul>{rest}</details>"
    )


def _settings(numbers: Overview) -> str:
    lines = []
    for key, value in numbers.settings.items():
        label, unit = SETTING_LABELS.get(key, (key.replace("_", " "), ""))
        said = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
        if key == "max_shot_seconds" and not value:
            said, unit = "no limit", ""
        lines.append(f"<div><dt>{escape(label)}</dt><dd>{escape(said + unit)}</dd></div>")
    intro = "From <code>corpus.json</code>: what determines the content of this corpus."
    return f'<p class="intro">{intro}</p><dl class="settings">{"".join(lines)}</dl>'


def _mean_std(mean: float, std: float) -> str:
    return f'{mean:,.1f} <span class="std">± {std:,.1f}</span>'


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def clock(seconds: float, digits: int = 0) -> str:
    """A time in the video: 1:04, 0:14.2, 1:02:03."""
    seconds = round(seconds, digits)
    sign, seconds = ("−", -seconds) if seconds < 0 else ("", seconds)
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    width = digits + 3 if digits else 2
    tail = f"{rest:0{width}.{digits}f}"
    return sign + (f"{hours}:{minutes:02d}:{tail}" if hours else f"{minutes}:{tail}")


def in_words(seconds: float) -> str:
    """A length: 6.2 s, 3 min 4 s, 2 h 5 min; with spaces that do not break."""
    whole = round(seconds)
    if seconds < 59.95:
        words = f"{seconds:.1f} s"
    elif whole < 3600:
        words = f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    else:
        words = f"{whole // 3600:,} h" + (f" {whole % 3600 // 60} min" if whole % 3600 // 60 else "")
    return words.replace(" ", "\N{NO-BREAK SPACE}")
