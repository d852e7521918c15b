"""Image files that users bring are opened in one way: no other program is started, and no decoder writes on the
terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vivi.data import decode
from vivi.evaluate.features import read_image
from vivi.runtime.errors import UserError

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


READERS: list[Callable[[Path], object]] = [read_image, decode.read_image, partial(decode.read_image, reduce=False)]


def noise(seed: int = 0) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), np.uint8)
    return Image.fromarray(np.kron(coarse, np.ones((8, 8, 1), np.uint8)))


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("name", ["x.png", "x.jpg"])
def test_postscript_under_another_name_is_refused_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], object], name: str
) -> None:
    """A stand-in for Ghostscript says that it was started."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / name).write_bytes(EPS)
    with pytest.raises((UserError, ValueError), match="it is damaged, or none of JPEG, PNG"):
        read(tmp_path / name)
    assert not (tmp_path / "started").exists()


def damaged(image: bytes, seed: int) -> bytes:
    """With a few bytes of its second half changed, and cut at times."""
    random = np.random.default_rng(seed)
    content = bytearray(image)
    for place in random.integers(len(content) // 2, len(content) - 2, 1 + 10 * (seed % 2)):
        content[place] = int(random.integers(0, 256))
    return bytes(content[: -len(content) // 3] if seed % 3 == 0 else content)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", ["JPEG", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "group4"])
def test_decoders_of_damaged_images_do_not_write_on_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], read: Callable[[Path], object], kind: str
) -> None:
    whole = io.BytesIO()
    if kind == "JPEG":
        noise().save(whole, "JPEG")
    else:
        noise().convert("1" if kind == "group4" else "RGB").save(whole, "TIFF", compression=kind)
    refused = 0
    for seed in range(12):
        (tmp_path / "x.jpg").write_bytes(damaged(whole.getvalue(), seed))
        try:
            read(tmp_path / "x.jpg")
        except (UserError, OSError, ValueError):
            refused += 1
    assert refused >= 4  # all that end early
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp", "gif", "bmp"])
def test_truncated_task_images_are_refused_in_one_line(tmp_path: Path, suffix: str) -> None:
    noise().save(path := tmp_path / f"x.{suffix}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(UserError, match=rf"image .*x\.{suffix} cannot be read: .*; replace it") as error:
        read_image(path)
    assert "\n" not in str(error.value)


def test_task_images_of_too_many_pixels_are_refused_in_one_line(tmp_path: Path) -> None:
    Image.new("1", (20_000, 9_000)).save(path := tmp_path / "x.png")  # 180 megapixels in a few bytes
    with pytest.raises(UserError, match="179 million"):
        read_image(path)
