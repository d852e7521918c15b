"""The page of a corpus: its numbers, what it refers to, what it survives, and how it lies in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from browser import CHROMIUM, Page, in_frames
from PIL import Image
from small_corpora import SETTINGS, jpeg, make_corpus, skipped, video

from vivi.prepare.corpus import ShotWriter, shard_path, videos_table, write_settings, write_videos
from vivi.prepare.jpeg import encode_jpeg
from vivi.report.histograms import count_histogram, duration_histogram, y_ticks
from vivi.report.inspect import write_page
from vivi.report.strips import choose_videos, evenly, shown_runs
from vivi.report.writing import clock, in_words
from vivi.runtime.errors import UserError

NASTY = ["<script>alert(1)</script>.mp4", "a \"quoted\" & 'odd' <b>name</b>.mp4", "видео/日本語 שלום.mp4"]
UNBROKEN = "x" * 230 + ".mp4"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    videos = [video(name, [2, 3, 1]) for name in NASTY]
    videos += [
        video("long.mp4", [1, 40, *[2] * 28], split="test"),
        video(UNBROKEN, [5], "3 damaged frames left out"),
    ]
    others = [skipped(f"broken-{i}.mp4", "cannot be opened: <invalid> data") for i in range(30)]
    others.append(skipped(UNBROKEN, "y" * 300))
    others.append(skipped("<img src=x onerror=alert(1)>.mp4", "is empty (0 bytes)"))
    return make_corpus(tmp_path / "corpus <1>", videos, others, damaged=[1])


def test_numbers(corpus: Path, tmp_path: Path) -> None:
    index = write_page(corpus, tmp_path / "page")
    page = Page(index)
    assert index == tmp_path / "page" / "index.html"
    # 3 videos of 3 shots and 6 frames, one of 30 shots and 97 frames, one of 1 shot and 5 frames.
    assert "Videos 5 32 skipped" in page.text
    assert "Shots 40 1 shard" in page.text
    assert "Frames 120 1 a second" in page.text
    assert "Footage 2 min 24.0 s a video" in page.text
    assert "4 / 1 20 % held out" in page.text
    shots = np.array([3, 3, 3, 30, 1])
    assert f"Shots per video {shots.mean():.1f} ± {shots.std():.1f} 25.5 ± 30.3" in page.text
    lengths = np.array([2, 3, 1] * 3 + [1, 40] + [2] * 28 + [5])
    assert f"Shot duration (s) {lengths.mean():.1f} ± {lengths.std():.1f} 9.0 ± 25.3" in page.text
    seconds = np.array([6, 6, 6, 97, 5])
    assert f"Video duration (s) {seconds.mean():.1f} ± {seconds.std():.1f} 230.7 ± 61.7" in page.text
    assert "Videos with 2 or more shots 4 80 %" in page.text
    assert "Sampling rate 1.0 frames/s" in page.text
    assert page.tags.count("svg") == 3 + 5
    assert "Skipped 32" in page.text and "30 cannot be opened: <invalid> data" in page.text


def test_film_strips(corpus: Path, tmp_path: Path) -> None:
    page = Page(write_page(corpus, tmp_path / "page"))
    assert page.strips == sorted(name.lower() for name in [*NASTY, "long.mp4", UNBROKEN])
    assert "30 shots 1 min 37 s 192×128 h264 test" in page.text
    assert re.search(r"Shot 2 3 of 40 frames from \S+ · 40.0 s", page.text)
    assert page.text.count("9 shots left out") == 2
    assert "Partly damaged: 3 damaged frames left out" in page.text
    assert page.text.count("damaged 0:01") == 1


def test_nothing_from_files_becomes_markup(corpus: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "<i>odd": "</dd><script>alert(2)</script>"}
    write_settings(corpus, settings)
    page = Page(write_page(corpus, tmp_path / "page"))
    assert page.tags.count("script") == 2
    assert not [key for key, _ in page.attributes if key.startswith("on")]
    assert "alert(1)" not in re.findall(r"<script>(.*?)</script>", page.html, re.DOTALL)[0]
    for name in NASTY:
        assert name in unescape(page.html)


def test_everything_referred_to_is_in_the_folder(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "page"
    page = Page(write_page(corpus, out))
    files = page.files()
    assert len(files) > 20
    assert {file for file in files if not (out / file).is_file()} == set()
    assert not re.search(r"https?://", page.html)
    for file in files:
        with Image.open(out / file) as image:
            assert image.height == 64  # small frames are not blown up
    assert {f"frames/{path.name}" for path in (out / "frames").iterdir()} == files


def test_large_frames_become_thumbnails(tmp_path: Path) -> None:
    folder = make_corpus(tmp_path / "corpus", [])
    with ShotWriter(shard_path(folder, 0)) as writer:
        writer.add("a", 0, [0.0, 1.0], [jpeg(1, (455, 256)), jpeg(2, (4000, 256))])
        writer.commit()
    row, _ = video("a", [2])
    write_videos(folder, [replace(row, shard=0, first_row=0)])
    write_page(folder, tmp_path / "page")
    sizes = {Image.open(path).size for path in (tmp_path / "page/frames").iterdir()}
    assert sizes == {(256, 144), (432, 28)}


def test_an_altered_frame_is_not_shown(tmp_path: Path) -> None:
    folder = make_corpus(tmp_path / "corpus", [])
    good = [encode_jpeg(np.full((64, 96, 3), level, np.uint8), 90) for level in (40, 80, 120)]
    bad = bytearray(good[1])
    bad[50] ^= 1  # in the quantisation table: it can be decoded
    with ShotWriter(shard_path(folder, 0)) as writer:
        writer.add("a", 0, [0.0, 1.0, 2.0], [good[0], bytes(bad), good[2]])
        writer.commit()
    row, _ = video("a", [3])
    write_videos(folder, [replace(row, shard=0, first_row=0)])
    page = Page(write_page(folder, tmp_path / "page"))
    assert len(page.files()) == 2 and page.text.count("damaged 0:01") == 1


def test_same_seed_same_page(tmp_path: Path) -> None:
    folder = make_corpus(tmp_path / "corpus", [video(f"{i:02d}.mp4", [1] * (1 + i % 4)) for i in range(40)])
    pages = [write_page(folder, tmp_path / str(i), videos=6, seed=seed) for i, seed in enumerate((7, 7, 8))]
    first, again, other = (page.read_bytes() for page in pages)
    assert first == again
    assert Page(pages[0]).strips != Page(pages[2]).strips
    assert len(Page(pages[2]).strips) == 6
    assert first != other


def test_rerun_replaces_the_page_and_nothing_else(tmp_path: Path) -> None:
    folder = make_corpus(tmp_path / "corpus", [video(f"{i}.mp4", [3, 3]) for i in range(12)])
    out = tmp_path / "page"
    before = Page(write_page(folder, out, videos=3, seed=0)).files()
    (out / "notes.txt").write_text("mine")
    (out / "frames/holiday.jpg").write_bytes(b"mine too")
    page = Page(write_page(folder, out, videos=3, seed=1))
    assert before - page.files()
    assert (out / "notes.txt").read_text() == "mine"
    found = {f"frames/{path.name}" for path in (out / "frames").iterdir()}
    assert found == page.files() | {"frames/holiday.jpg"}


def test_pages_without_film_strips(tmp_path: Path) -> None:
    empty = make_corpus(tmp_path / "empty", [], [skipped("a.mp4", "is empty (0 bytes)")])
    page = Page(write_page(empty, tmp_path / "a"))
    assert "no video could be used" in page.text and "1 is empty (0 bytes)" in page.text
    nothing = make_corpus(tmp_path / "nothing", [])
    assert "No file was skipped." in Page(write_page(nothing, tmp_path / "b")).text
    full = make_corpus(tmp_path / "full", [video("a", [1])])
    assert "none were asked for" in Page(write_page(full, tmp_path / "c", videos=0)).text


def test_long_lists_are_cut(tmp_path: Path) -> None:
    others = [skipped(f"{i}.mp4", "is empty") for i in range(1000)] + [skipped(f"r{i}", f"r{i}") for i in range(100)]
    page = Page(write_page(make_corpus(tmp_path / "corpus", [], others), tmp_path / "page"))
    assert "and 800 more: see videos.parquet" in page.text.replace(" .", ".")
    assert "61 more files for 61 other reasons" in page.text


def test_clear_errors(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "page"
    file = tmp_path / "file"
    file.write_text("mine")
    foreign = tmp_path / "site"
    foreign.mkdir()
    (foreign / "index.html").write_text("<h1>My site</h1>")
    for wrong, message in (
        (lambda: write_page(tmp_path / "none", out), "has no corpus.json"),
        (lambda: write_page(corpus, file), "is a file"),
        (lambda: write_page(corpus, file / "page"), "folder"),
        (lambda: write_page(corpus, foreign), "was not made by vivi inspect"),
        (lambda: write_page(corpus, out, videos=-1), "--videos is -1"),
        (lambda: write_page(corpus, out, seed=-1), "--seed is -1"),
    ):
        with pytest.raises(UserError, match=message) as error:
            wrong()
        assert "\n" not in str(error.value)
    assert file.read_text() == "mine" and not out.exists()
    write_settings(corpus, {**SETTINGS, "rate": "fast"})
    with pytest.raises(UserError, match="no usable rate: 'fast'"):
        write_page(corpus, out)
    (corpus / "videos.parquet").unlink()
    with pytest.raises(UserError, match="was not finished"):
        write_page(corpus, out)


def test_damaged_and_missing_shards_are_named(corpus: Path, tmp_path: Path) -> None:
    shard = shard_path(corpus, 0)
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"00000\.arrow is damaged"):
        write_page(corpus, tmp_path / "page")
    shard.unlink()
    with pytest.raises(UserError, match=r"00000\.arrow is missing"):
        write_page(corpus, tmp_path / "page")


def test_choice_of_videos() -> None:
    rows = [video(f"{i:05d}", [1] * (1 if i % 2 else 2 + i % 50))[0] for i in range(20000)]
    rows.append(skipped("broken", "is empty"))
    table = videos_table(rows)
    chosen = choose_videos(table, 24, seed=3)
    assert chosen == choose_videos(videos_table(rows[::-1]), 24, seed=3)
    assert len({row.video for row in chosen}) == 24
    assert sum(row.shots == 1 for row in chosen) == 6
    assert max(row.shots for row in chosen) > 45 and 2 <= min(row.shots for row in chosen if row.shots > 1) < 8
    assert chosen != choose_videos(table, 24, seed=4)
    assert [row.video for row in choose_videos(videos_table(rows[1:2]), 24, seed=0)] == ["00001"]
    few = [video("one", [1])[0], *(video(f"{i}", [1, 1])[0] for i in range(9))]
    assert len(choose_videos(videos_table(few), 24, seed=0)) == 10


def test_what_is_shown_of_long_videos() -> None:
    assert shown_runs(12) == [range(12)]
    assert shown_runs(13) == [range(4), range(4, 8), range(9, 13)]
    assert shown_runs(1000) == [range(4), range(498, 502), range(996, 1000)]
    assert evenly(6, 5) == [0, 1, 2, 3, 4, 5]
    assert evenly(101, 5) == [0, 25, 50, 75, 100]


def test_histograms() -> None:
    counts = count_histogram(np.array([1, 1, 2, 3, 4, 5, 100]))
    assert counts and counts.bins == ["1", "2", "3–4", "5–8", "9–16", "17–32", "33–64", "65–128"]
    assert counts.counts == [2, 1, 2, 1, 0, 0, 0, 1]
    few = count_histogram(np.array([2, 4]))
    assert few and few.bins == ["2", "3", "4"]
    durations = duration_histogram(np.array([0.2, 1.9999999999, 2, 59, 60, 7300]), step=1.0)
    assert durations and durations.labels[:4] == ["0", "1 s", "2 s", "4 s"] and durations.labels[-1] == "4 h"
    assert durations.counts[:4] == [1, 0, 2, 0] and sum(durations.counts) == 6 and durations.logarithmic
    close = duration_histogram(np.array([70.0, 75, 99]), step=1.0)
    assert close and close.labels[0] == "70 s" and not close.logarithmic and sum(close.counts) == 3
    for values in ([5.0], [0.0, 0.0]):
        one = duration_histogram(np.array(values), step=1.0)
        assert one and one.counts == [len(values)]
    assert count_histogram(np.array([], np.int64)) is None and duration_histogram(np.array([]), step=1.0) is None


def test_a_histogram_says_its_numbers_where_one_points(corpus: Path, tmp_path: Path) -> None:
    page = Page(write_page(corpus, tmp_path / "page"))
    assert page.text.count("1 s to 2 s: 6 shots") == 1
    labels = [value for key, value in page.attributes if key == "aria-label" and value.startswith("Shots per video.")]
    assert labels == ["Shots per video. 1: 1; 2: 0; 3–4: 3; 5–8: 0; 9–16: 0; 17–32: 1"]


@pytest.mark.parametrize("largest", [1, 2, 3, 9, 10, 11, 99, 101, 12345, 10**9])
def test_y_ticks(largest: int) -> None:
    ticks = y_ticks(largest)
    assert ticks[0] == 0 and ticks[-1] >= largest and 2 <= len(ticks) <= 5


def test_times_in_words() -> None:
    assert [clock(59.6), clock(3723), clock(14.25, 1), clock(0), clock(-0.04, 1)] == [
        "1:00",
        "1:02:03",
        "0:14.2",
        "0:00",
        "0:00.0",
    ]
    spoken = [in_words(s).replace("\N{NO-BREAK SPACE}", " ") for s in (0.04, 59.96, 184, 3600, 7500)]
    assert spoken == ["0.0 s", "1 min", "3 min 4 s", "1 h", "2 h 5 min"]


PROBE = """<script>
addEventListener("load", async () => {
  const root = document.documentElement;
  const images = [...document.querySelectorAll(".frame img")];
  images.forEach((image) => { image.loading = "eager"; });
  const loaded = (image) => image.complete || new Promise((done) => { image.onload = image.onerror = done; });
  await Promise.all(images.map(loaded));
  problems.push(...images.filter((image) => !image.naturalWidth).map((image) => "not loaded: " + image.src));
  document.querySelectorAll("details").forEach((details) => { details.open = true; });
  const found = { width: innerWidth, overflow: root.scrollWidth - root.clientWidth, images: images.length };
  found.filmScrolls = [...document.querySelectorAll(".film")].some((film) => film.scrollWidth > film.clientWidth);
  const filter = document.getElementById("filter");
  filter.value = "LONG";
  filter.dispatchEvent(new Event("input"));
  found.filtered = [...document.querySelectorAll(".strip")].filter((strip) => strip.offsetHeight > 0).length;
  document.querySelector(".strip:not([hidden]) a.frame").click();
  found.viewer = document.getElementById("viewer").open;
  document.querySelector("#viewer [data-go='1']").click();
  found.caption = document.querySelector("#viewer figcaption").textContent;
  found.overflowWithViewer = root.scrollWidth - root.clientWidth;
  found.problems = problems;
  parent.postMessage(found, "*");
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_in_a_browser(corpus: Path, tmp_path: Path) -> None:
    """At phone and desktop widths nothing sticks out, every picture loads, and the script does what it says."""
    out = tmp_path / "page"
    html = write_page(corpus, out).read_text(encoding="utf-8")
    reports = in_frames(out, html, PROBE, (360, 1600))
    assert sorted(report["width"] for report in reports) == [360, 1600]
    for report in reports:
        assert report["problems"] == []
        assert report["overflow"] == 0 and report["overflowWithViewer"] == 0
        assert report["images"] > 20 and report["filmScrolls"]
        assert report["filtered"] == 1 and report["viewer"]
        assert report["caption"] == "Shot 2 at 0:01 · long.mp4"


def test_from_the_command_line(corpus: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vivi", "inspect", str(corpus), "--out", str(tmp_path / "page"), "--videos", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(Page(tmp_path / "page/index.html").strips) == 2
