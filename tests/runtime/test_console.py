"""What commands print: text of others cannot command the terminal, and long work goes on when nobody reads."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import reasons, write_video
from rich.table import Table
from rich.text import Text
from small_tasks import write_task

from vivi.runtime.console import SafeConsole, harmless
from vivi.runtime.progress import ProgressLine

COMMAND = [sys.executable, "-m", "vivi"]
EVIL = "a\x1b]0;title\x07\x1b[2J\x9b31m\u202eb\u2066\r\x7f\x08\x00c"


def test_control_characters_become_signs_and_all_other_text_stays() -> None:
    assert harmless("\x1b[31m\r\x00\x7f") == "␛[31m␍␀␡"
    assert harmless("\x9b\u202e\u2066\u2028\udcff") == "�" * 5
    text = "tab\tline\n × é 漢字 עברית العربية 🎉 [bold] ␛\u200d\u200f"
    assert harmless(text) == text


@pytest.mark.parametrize("terminal", [False, True])
def test_nothing_that_is_printed_commands_the_terminal(terminal: bool) -> None:
    console = SafeConsole(file=io.StringIO(), width=200, force_terminal=terminal, color_system=None)
    table = Table(title=EVIL)
    table.add_column(EVIL)
    table.add_row(EVIL)
    for one in (EVIL, Text(EVIL), table):
        console.print(one, soft_wrap=not isinstance(one, Table))
    console.out(EVIL)
    console.print("[/x] [red]y[/red] :cat:")
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "[/x] [red]y[/red] :cat:" in said and "␛[2J" in said
    assert not [character for character in said if harmless(character) != character]


def test_names_of_files_in_a_progress_bar_are_no_markup() -> None:
    console = SafeConsole(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    with ProgressLine("name [/x]", 2, console) as progress:
        progress.show(1, f"video [/x] {EVIL}")
        progress.bar.refresh()
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "name [/x]" in said and "video [/x] a␛]0;title" in said and "\x1b]" not in said and "\x1b[2J" not in said


@pytest.fixture
def odd_videos(tmp_path: Path) -> Path:
    """A video, and one that is none, with a name that would set the title of the terminal."""
    write_video(tmp_path / "videos" / "a.mp4")
    (tmp_path / "videos" / "b\x1b]0;title\x07\x1b[2J.mp4").write_text("no video")
    return tmp_path / "videos"


def prepare(videos: Path, out: Path) -> list[str]:
    return [*COMMAND, "prepare", str(videos), "--out", str(out), "--workers", "1"]


def test_a_reader_who_leaves_stops_no_work(odd_videos: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        prepare(odd_videos, tmp_path / "corpus"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()  # before anything is printed
    errors = process.stderr.read()
    assert process.wait(timeout=100) == 0 and errors == b""
    assert len(reasons(tmp_path / "corpus")) == 1


def test_a_full_disk_for_what_is_printed_stops_no_work(odd_videos: Path, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            prepare(odd_videos, tmp_path / "corpus"), stdout=full, stderr=subprocess.PIPE, timeout=100
        )
    assert done.returncode == 0 and done.stderr == b""
    assert len(reasons(tmp_path / "corpus")) == 1


@pytest.mark.parametrize("words", [["recipes", "--json", "vivi-ex4"], ["--help"]])
def test_what_is_only_printed_and_cannot_be_is_an_error_in_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_a_reader_who_leaves_a_list_has_seen_enough() -> None:
    process = subprocess.Popen([*COMMAND, "recipes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(timeout=100) == 0


@pytest.mark.parametrize("name", [b"\xff", b"\x1b[31mred\r\n\x1b[2J"])
def test_an_error_about_an_odd_name_is_one_harmless_line(name: bytes, tmp_path: Path) -> None:
    flags = [b"--data", os.fsencode(tmp_path), b"--device", b"cpu"]
    words = [os.fsencode(word) for word in [*COMMAND, "evaluate", "linear"]]
    done = subprocess.run([*words, b"--encoder", name, *flags], capture_output=True, timeout=100)
    assert done.returncode == 1 and done.stdout == b""
    assert done.stderr.startswith(b"error: there is no run or file ") and done.stderr.count(b"\n") == 1
    assert b"\x1b" not in done.stderr and b"\r" not in done.stderr


def test_names_that_are_not_text_are_evaluated_and_reported(tmp_path: Path) -> None:
    """Of an encoder, of the folders of data, results and page, and of a task."""
    data, results, page = (tmp_path / os.fsdecode(name) for name in (b"data\xff", b"results\xff", b"page\xff"))
    write_task(data / os.fsdecode(b"task\xff"))
    name = ["--name", os.fsdecode(b"name\xff"), "--encoder", "untrained:test_resnet", "--device", "cpu"]
    evaluate = [*COMMAND, "evaluate", "knn", *name, "--data", str(data), "--out", str(results)]
    for command in (evaluate, [*COMMAND, "report", str(results), "--out", str(page)]):
        done = subprocess.run(command, capture_output=True, timeout=100)
        assert done.returncode == 0, done.stderr
    (result,) = results.glob("*.json")
    assert json.loads(result.read_text())["encoder"] == os.fsdecode(b"name\xff")
    assert (page / "index.html").exists()
