"""JPEG files decoded by a GPU: what a CPU decodes, and None for what is damaged, alone."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from vivi.batches.frames import decode, decode_there
from vivi.batches.nvjpeg import decode_jpegs

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda")


def jpeg(seed: int, size: tuple[int, int] = (64, 48), mode: str = "RGB") -> bytes:
    """A random picture without hard edges, which JPEG keeps well."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    image = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode)
    image.save(stream := io.BytesIO(), "JPEG", quality=92)
    return stream.getvalue()


def tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def assert_close(decoded: Tensor, content: bytes) -> None:
    expected = decode(content)
    assert decoded.is_cuda and decoded.dtype == torch.uint8 and decoded.shape == expected.shape
    # In squares of four: a GPU repeats colours that are stored at half the size, a CPU blends them.
    ours, theirs = (functional.avg_pool2d(pixels.cpu().float(), 4) for pixels in (decoded, expected))
    assert (ours - theirs).abs().mean() < 2


@needs_gpu
def test_a_gpu_decodes_what_a_cpu_does() -> None:
    files = [jpeg(seed, (40 + seed, 90 - seed), "L" if seed % 5 == 0 else "RGB") for seed in range(40)]
    decoded = decode_jpegs([tensor(file) for file in files], GPU)
    for one, file in zip(decoded, files, strict=True):
        assert one is not None
        assert_close(one, file)
    assert decode_jpegs([], GPU) == []


@needs_gpu
@pytest.mark.parametrize("bad", [[0], [5], [19], [3, 4], [0, 7, 8, 19], list(range(20))], ids=str)
def test_only_what_is_damaged_is_none(bad: list[int]) -> None:
    files = [b"no JPEG at all" if number in bad else jpeg(number) for number in range(20)]
    decoded = decode_jpegs([tensor(file) for file in files], GPU)
    assert [number for number, one in enumerate(decoded) if one is None] == bad
    for one, file in zip(decoded, files, strict=True):
        if one is not None:
            assert_close(one, file)


@needs_gpu
def test_what_was_decoded_may_be_used_at_once() -> None:
    files = [tensor(jpeg(seed, (300, 200))) for seed in range(16)]
    torch.cuda.synchronize()
    expected = [one.clone() for one in decode_jpegs(files, GPU) if one is not None]
    torch.cuda.synchronize()
    for _ in range(20):
        copies = [one + 0 for one in decode_jpegs(files, GPU) if one is not None]
        assert all(torch.equal(one, other) for one, other in zip(copies, expected, strict=True))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        copies = [one + 0 for one in decode_jpegs(files, GPU) if one is not None]
    torch.cuda.current_stream().wait_stream(side)
    assert all(torch.equal(one, other) for one, other in zip(copies, expected, strict=True))


@needs_gpu
def test_files_without_their_ends_are_left_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that was cut a GPU decodes what there is; also in more than one go."""
    monkeypatch.setattr("vivi.batches.frames._AT_ONCE", 7)
    files = [jpeg(number) for number in range(20)]
    files[3], files[9], files[19] = files[3][:-20], b"?", files[19][2:]
    frames, unknown = decode_there([tensor(file) for file in files], GPU)
    assert unknown == [3, 9, 19]
    for number in set(range(20)) - set(unknown):
        assert_close(frames[number], files[number])


def test_without_a_gpu_all_files_are_left_to_the_cpu() -> None:
    frames, unknown = decode_there([tensor(jpeg(seed)) for seed in range(3)], torch.device("cpu"))
    assert len(frames) == 3 and unknown == [0, 1, 2]
