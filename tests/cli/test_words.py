"""The words of a command line: what every command shares, help, and what is said about words that are wrong."""

from __future__ import annotations

import json
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest
import tyro
from conftest import Run
from small_tasks import write_task

from vivi.cli.bench import Bench
from vivi.cli.command import Command, Flag, Group
from vivi.cli.main import COMMANDS, Common, run
from vivi.cli.parse import WrongCommand, defaults_of, parse
from vivi.cli.report import Recipes


def all_commands(group: Group = COMMANDS, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, kind in group.commands.items():
        if isinstance(kind, Group):
            yield from all_commands(kind, (*before, name))
        elif kind is not Bench:  # has flags of its own
            yield (*before, name), kind


EVERY = pytest.mark.parametrize(("names", "kind"), [*all_commands()], ids=lambda value: str(value)[:30])


def needed(flags: list[Flag]) -> list[str]:
    """The words without which a command cannot be."""
    words = []
    for flag in flags:
        if flag.default is MISSING:
            word = "vivi-ex4" if flag.names[0] == "RECIPE" else flag.value.split("|")[0]
            words += [word] if flag.positional else [flag.names[0], word]
    return words


def wrong(*words: str) -> str:
    """What is said about words that make no command."""
    with pytest.raises(WrongCommand) as caught:
        parse(words, COMMANDS)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command in this process."""
    monkeypatch.setattr(sys, "argv", ["vivi", *words])
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # run() puts others in their place
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    try:
        run()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


# --- flags and help ---


@EVERY
def test_the_flags_that_the_help_shows_are_those_that_are_parsed(
    names: tuple[str, ...], kind: type[Command], capsys: pytest.CaptureFixture[str]
) -> None:
    default, flags = defaults_of(kind, ["vivi-ex4"])
    more = {} if default is None else {"default": default}
    with pytest.raises(SystemExit):
        tyro.cli(kind, args=["--help"], **more)
    rows = [line.strip("│| ") for line in capsys.readouterr().out.splitlines() if re.match("[│ ] -", line)]
    parsed = {name for row in rows for name in re.findall(r"--[a-z][\w.-]*", row.split("  ")[0])} - {"--help"}
    assert {name for flag in flags if not flag.positional for name in flag.names} == parsed
    assert all(flag.help for flag in flags), [flag.names for flag in flags if not flag.help]


@EVERY
def test_every_help_begins_with_examples_which_are_commands(names: tuple[str, ...], kind: type[Command]) -> None:
    assert kind.examples
    for example in (*kind.examples, *COMMANDS.examples):
        program, *words = shlex.split(example.partition(" > ")[0], comments=True)
        words = Common().take_from(words)
        assert program == "vivi" and (example in COMMANDS.examples or words[: len(names)] == list(names))
        if "vivi-ex4 --help" not in example:
            assert isinstance(parse(words, COMMANDS), Command)


def test_the_help_of_train_shows_first_what_people_change_and_all_of_it_on_request(vivi: Run) -> None:
    short, whole = vivi("train", "--help"), vivi("train", "rot-yt-f", "--help-all")
    assert short.returncode == whole.returncode == 0
    assert len(short.stdout.splitlines()) < 80 and "--optimiser.momentum" not in short.stdout
    assert short.stdout.index("examples:") < short.stdout.index("--corpus") < short.stdout.index("--optimiser.lr")
    assert "--optimiser.momentum" in whole.stdout and "--images-fraction" not in whole.stdout  # an alias
    assert "--loss.frame.margin" not in whole.stdout  # of another loss than this recipe's


@pytest.mark.parametrize("words", [["--help"], ["evaluate", "--help"], ["-h", "evaluate"]])
def test_the_help_of_several_commands_says_what_each_is_for(words: list[str], vivi: Run) -> None:
    shown = vivi(*words).stdout
    group = COMMANDS.commands["evaluate"] if "evaluate" in words else COMMANDS
    assert isinstance(group, Group)
    assert all(re.search(rf"^  {name}  +[A-Z].*", shown, re.MULTILINE) for name in group.commands), shown
    assert "examples:" in shown and "--quiet" in shown


def test_shells_are_told_how_to_complete_commands_and_flags(vivi: Run) -> None:
    script = vivi("--tyro-print-completion", "bash").stdout
    for word in ("doctor", "vid-robust", "--loss.video-weight", "rotation", "--check"):
        assert word in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


# --- wrong words ---


@EVERY
def test_a_flag_without_its_value_is_named_as_it_is_typed(names: tuple[str, ...], kind: type[Command]) -> None:
    flags = defaults_of(kind, ["vivi-ex4"])[1]
    asked = [flag for flag in flags if flag.value and not flag.positional and not flag.value.endswith("...")]
    for flag in asked[:: 12 if kind.everyday else 1]:  # train has many of a kind
        said = wrong(*names, *needed(flags), flag.names[0])
        assert said.startswith(f"{flag.names[0]} needs {'2 values' if ' ' in flag.value else 'a value'}; vivi ")
        if flag.value in ("INT", "NUMBER"):
            kind_of = "whole number" if flag.value == "INT" else "number"
            assert f"{flag.names[0]}: 'x' is no {kind_of}; vivi" in wrong(*names, *needed(flags), flag.names[0], "x")


@EVERY
def test_words_that_are_missing_are_named_with_an_example(names: tuple[str, ...], kind: type[Command]) -> None:
    flags = [flag for flag in defaults_of(kind, [])[1] if flag.default is MISSING]
    if flags:
        said = wrong(*names)
        example = kind.examples[0].partition("  ")[0]
        assert said.startswith(f"vivi {' '.join(names)} needs ") and f"for example: {example}; " in said
        required = [flag.names[0] for flag in flags if not flag.names[0].endswith("...")] or [flags[0].names[0]]
        assert all(name in said.split(",")[0] for name in required)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("trian vivi-ex4", "there is no command 'vivi trian' (did you mean 'train'?)"),
        ("evaluate lineer", "there is no command 'vivi evaluate lineer' (did you mean 'linear'?)"),
        ("--verison", "vivi has no flag --verison"),
        ("prepare v --ot c", "vivi prepare has no flag --ot (did you mean '--out'?)"),
        ("train vivi-ex4 --out r --lr 1", "has no flag --lr (did you mean '--optimiser.lr'?)"),
        ("train vivi-ex4 --out r --margin 1", "has no flag --margin (did you mean '--loss.frame.margin'?)"),
        ("train --nonsense --out r", "vivi train has no flag --nonsense"),
        ("train vivi-ex4 --out r -x", "vivi train has no flag -x"),
        ("train vivi-ex4 --out r more", "these words are too many: more"),
        ("train vivi-ex4 --out r --augment.flip=1", "--augment.flip is a switch and takes no value"),
        (
            "evaluate knn --encoder e --data d --protocol v9",
            "--protocol is 'v9'; it must be one of 'v1', 'v2', 'full'",
        ),
        ("train vivi-ex4 --out r --optimiser.decay-at a b", "--optimiser.decay-at: 'a', 'b' cannot be its values"),
        ("evaluate", "name a command: vivi evaluate {linear,knn,"),
    ],
)
def test_wrong_words_are_one_line_with_what_was_probably_meant(line: str, said: str) -> None:
    assert said in wrong(*line.split())


# --- what every command shares ---


def test_the_version_names_torch_too_without_importing_it(vivi: Run) -> None:
    assert re.fullmatch(r"vivi 0\.\d+\.\d+, torch \d+\.\d+.*, Python 3\.\d+\.\d+\n", vivi("--version").stdout)


def test_quiet_prints_warnings_and_the_last_line_only(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["inspect", str(corpus), "--out", str(tmp_path / "page"), "--videos", "1"]
    assert called(monkeypatch, "-q", *words) == 0
    assert capsys.readouterr() == (f"open {tmp_path}/page/index.html\n", "")
    (tmp_path / "list.txt").write_text(f"{corpus.parent}/videos/v00.mp4\nnowhere.mp4\n")
    assert called(monkeypatch, "prepare", str(tmp_path / "list.txt"), "--out", str(tmp_path / "c"), "--quiet") == 0
    assert capsys.readouterr().out == "1 videos (1 train, 0 test), 1 shots, 3 frames, 0.00 hours\n"


def test_verbose_says_what_was_decided(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["prepare", f"{corpus.parent}/videos/v00.mp4", "--out", str(tmp_path / "c"), "--workers", "1"]
    assert called(monkeypatch, *words, "-v") == 0
    assert "1 worker processes: " in capsys.readouterr().err


def test_json_is_all_that_is_on_standard_output(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["inspect", str(corpus), "--out", str(tmp_path / "page"), "--videos", "1", "--json"]
    assert called(monkeypatch, *words) == 0
    said = capsys.readouterr()
    facts = json.loads(said.out)
    assert facts["page"] == f"{tmp_path}/page/index.html" and facts["videos"] == facts["train"] + facts["test"] == 12
    assert facts["shots_per_video"]["mean"] == 3.5 and "shots per video" in said.err and "open " in said.err
    assert called(monkeypatch, "evaluate", "vtab", "--check", str(tmp_path), "--json") == 0
    tasks = json.loads(capsys.readouterr().out)["tasks"]
    assert len(tasks) == 19 and {task["state"] for task in tasks} == {"missing"}
    assert called(monkeypatch, "recipes", "--json") == 0
    said = capsys.readouterr()
    assert {"recipe", "batch", "losses", "besides"} == {*json.loads(said.out)[0]} and not said.err


def test_an_evaluation_prints_its_results_as_json_and_drops_empty_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path / "data" / "mine")
    encoder = ("--encoder", "untrained:test_resnet", "--device", "cpu")
    flags = (*encoder, "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"))
    assert called(monkeypatch, "evaluate", "knn", *flags, "--json") == 0
    said = capsys.readouterr()
    [result] = json.loads(said.out)["results"]
    assert (result["task"], result["benchmark"]) == ("mine", "knn") and len(result["score"]["accuracies"]) == 1
    assert "accuracy" in said.err and "seeds" not in said.err and "setting" not in said.err


def test_an_unexpected_error_is_one_line_and_its_traceback_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("it went wrong")

    monkeypatch.setattr(Recipes, "run", fail)
    assert called(monkeypatch, "recipes") == 1
    said = capsys.readouterr().err
    found = re.fullmatch(
        r"error: unexpected ZeroDivisionError: it went wrong; where it happened: (.+), or say -v\n", said
    )
    assert found is not None
    path = Path(found[1])
    assert 'raise ZeroDivisionError("it went wrong")' in path.read_text()
    path.unlink()
    with pytest.raises(ZeroDivisionError):
        called(monkeypatch, "recipes", "-v")
    logging.getLogger("vivi").handlers.clear()
