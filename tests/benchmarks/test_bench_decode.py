"""JPEG decoders beside each other: which images, what is compared, and what is written."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run
from decode import DecodeOptions, Decoder, Same, bench_decode, compare, find_decoders, find_jpegs
from PIL import Image
from rich.console import Console

from vivi.data.decode import decode_frame
from vivi.data.index import open_index, read_frames
from vivi.prepare.corpus import Corpus
from vivi.runtime.errors import UserError

QUIET = Console(quiet=True)


def test_installed_decoders_are_measured_and_the_others_are_said_to_be_missing(
    vivi: Run, corpus: Path, tmp_path: Path
) -> None:
    flags = ("--count", 20, "--rounds", 2, "--threads", 2, "--json", tmp_path / "found.json")
    done = vivi("bench", "decode", corpus, *flags)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["images"] == 20
    assert {"simplejpeg", "torchvision", "Pillow"} <= set(found["decoders"])
    assert {"OpenCV", "torchcodec"} <= {*found["decoders"], *found["missing"]}
    for name, decoder in found["decoders"].items():
        assert [len(decoder["images_per_second"][threads]) for threads in "12"] == [2, 2]
        assert min(decoder["medians"].values()) > 0 and name in done.stdout
    assert found["decoders"]["simplejpeg"]["same_images"] == 20
    for name, reason in found["missing"].items():
        assert f"{name} is missing: {reason}" in done.stdout and "\n" not in reason


def test_the_frames_are_evenly_those_of_the_corpus(corpus: Path) -> None:
    index = open_index(Corpus(corpus))
    videos = np.repeat(np.arange(len(index)), np.diff(index.first_shot)).tolist()
    frames = [
        bytes(jpeg)
        for shot, video in enumerate(videos)
        for jpeg in read_frames(index, video, shot, range(int(index.frames[shot])))
    ]
    assert [bytes(jpeg) for jpeg in find_jpegs(corpus, 10**6)] == frames
    some = [bytes(jpeg) for jpeg in find_jpegs(corpus, 5)]
    assert len(some) == 5 and some[0] == frames[0] and some[-1] == frames[-1] and set(some) <= set(frames)


def test_a_folder_of_jpeg_files_will_do(tmp_path: Path) -> None:
    for name in ("a.jpg", "deep/b.JPEG", "c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (20, 10)).save(tmp_path / name)
    assert len(find_jpegs(tmp_path, 10)) == 2
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8 and no more")
    with pytest.raises(UserError, match=r"broken\.jpg cannot be decoded") as refused:
        find_jpegs(tmp_path, 10)
    assert "\n" not in str(refused.value)


def test_pixels_that_differ_are_counted(corpus: Path) -> None:
    jpegs = find_jpegs(corpus, 8)

    def decode(jpeg: bytearray) -> Any:
        """The first image has one pixel that is off, and is a tensor, channels first, as torch's are."""
        image = decode_frame(jpeg).copy()
        image[3, 4, 1] ^= 4 if jpeg == jpegs[0] else 0
        return torch.from_numpy(image).permute(2, 0, 1) if jpeg == jpegs[0] else image

    exact = Decoder(lambda some: [decode_frame(jpeg) for jpeg in some], at_once=3)
    assert compare(exact, jpegs) == Same(8, 0)
    assert compare(Decoder(lambda some: [decode(jpeg) for jpeg in some], at_once=3), jpegs) == Same(7, 4)
    cut = Decoder(lambda some: [decode_frame(jpeg)[:-1] for jpeg in some])
    assert compare(cut, jpegs) == Same(0, 255)


def test_all_decoders_here_give_rgb(corpus: Path) -> None:
    jpegs = find_jpegs(corpus, 4)
    decoders, _ = find_decoders(jpegs[0])
    for name, decoder in decoders.items():
        # nvJPEG enlarges the colour channels in a way of its own.
        most = 64 if "CUDA" in name else 4
        assert compare(decoder, jpegs).largest <= most, f"{name}: another rounding, but the same channels"


def test_the_figures_are_those_of_the_table(corpus: Path) -> None:
    said = io.StringIO()
    found = bench_decode(DecodeOptions(corpus, count=4, threads=1, rounds=1), Console(file=said, width=150))
    rate = found["decoders"]["Pillow"]["medians"][1]
    assert f"{rate:,.0f} ({rate:,.0f}–{rate:,.0f})" in said.getvalue() and "2 threads" not in said.getvalue()


def test_what_cannot_work_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    options = DecodeOptions(tmp_path)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"rounds": 0}, "--rounds"),
        ({"threads": -1}, "--threads"),
        ({"json": tmp_path}, "it is a folder"),
        ({}, "is no corpus, and no folder with JPEG files"),
    ]
    if not torch.cuda.is_available():
        cases.append(({"beside_training": True}, "--beside-training keeps a GPU busy"))
    for changes, said in cases:
        with pytest.raises(UserError, match=said):
            bench_decode(replace(options, **changes), QUIET)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_matrix_products_go_on_beside_decoding(corpus: Path) -> None:
    found = bench_decode(DecodeOptions(corpus, count=64, rounds=1, beside_training=True), QUIET)
    shares = [share for one in found["decoders"].values() for of in one["matrix_products"].values() for share in of]
    assert shares and all(0 < share < 2 for share in shares)
