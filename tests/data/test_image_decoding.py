"""Image files of every kind become the RGB that Pillow says they are; what cannot be read says why, in a line."""

from __future__ import annotations

import io
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import altered, jpeg
from numpy.typing import NDArray
from PIL import Image

from vivi.data.decode import LARGEST, decode_frame, plain_jpeg_size, read_image, reduced_size


def smooth(height: int, width: int, seed: int = 0) -> Image.Image:
    """A random image without hard edges, which JPEG keeps well."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def pillow(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.array(image.convert("RGB"))


def difference(image: NDArray[np.uint8], expected: NDArray[np.uint8]) -> float:
    assert image.dtype == np.uint8 and image.shape == expected.shape
    return float(np.abs(image.astype(float) - expected).mean())


def reason(path: Path) -> str:
    with pytest.raises((ValueError, OSError)) as error:
        read_image(path)
    said = str(error.value)
    assert said and "\n" not in said and str(path.parent) not in said and "0x" not in said
    return said


KINDS: list[tuple[str, str, dict[str, Any]]] = [
    ("RGB", "jpg", {}),
    ("RGB", "jpg", {"progressive": True, "subsampling": 0}),
    ("RGB", "jpg", {"keep_rgb": True}),
    ("L", "jpg", {}),
    ("CMYK", "jpg", {}),
    ("RGB", "png", {}),
    ("RGBA", "png", {}),
    ("L", "png", {}),
    ("LA", "png", {}),
    ("1", "png", {}),
    ("P", "png", {}),
    ("P", "png", {"transparency": bytes(range(256))}),
    ("P", "png", {"transparency": 3}),
    ("RGB", "png", {"transparency": (1, 2, 3)}),
    ("RGB", "webp", {}),
    ("RGBA", "webp", {"lossless": True}),
    ("RGB", "bmp", {}),
    ("P", "bmp", {}),
    ("P", "gif", {}),
    ("L", "gif", {"transparency": 0}),
    ("RGB", "tif", {}),
    ("RGB", "tiff", {"compression": "tiff_lzw"}),
    ("CMYK", "tif", {}),
    ("RGB", "ppm", {}),
    ("L", "pgm", {}),
]


@pytest.mark.parametrize(("mode", "suffix", "options"), KINDS)
@pytest.mark.parametrize("size", [(1, 1), (37, 53)])
def test_all_modes_and_formats(
    tmp_path: Path, mode: str, suffix: str, options: dict[str, Any], size: tuple[int, int]
) -> None:
    path = tmp_path / f"x.{suffix}"
    smooth(*size).convert(mode).save(path, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = pillow(path)
    assert difference(read_image(path), expected) == 0
    assert difference(read_image(path, reduce=False), expected) == 0


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bits_lose_their_lower_eight(tmp_path: Path, suffix: str) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (9, 14)).astype(np.uint16)
    values[0, :2] = 0, 65535
    Image.fromarray(values).save(path := tmp_path / f"x.{suffix}")
    assert difference(read_image(path), np.stack([(values >> 8).astype(np.uint8)] * 3, axis=2)) == 0


@pytest.mark.parametrize("suffix", ["gif", "png", "webp", "tif"])
def test_of_an_animation_the_first_image(tmp_path: Path, suffix: str) -> None:
    frames = [smooth(30, 40, seed).quantize(64).convert("RGB") for seed in range(3)]
    options: dict[str, Any] = {"lossless": True} if suffix == "webp" else {}
    frames[0].save(path := tmp_path / f"x.{suffix}", save_all=True, append_images=frames[1:], **options)
    assert difference(read_image(path), np.array(frames[0])) == 0


def test_the_content_decides_and_not_the_suffix(tmp_path: Path) -> None:
    smooth(20, 30).save(tmp_path / "x.png")
    expected = pillow(tmp_path / "x.png")
    (tmp_path / "x.png").rename(tmp_path / "x.jpg")
    assert difference(read_image(tmp_path / "x.jpg"), expected) == 0


def test_a_camera_held_upright_does_not_matter(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    smooth(20, 30).save(tmp_path / "x.jpg", exif=exif)
    assert difference(read_image(tmp_path / "x.jpg"), pillow(tmp_path / "x.jpg")) == 0


@pytest.mark.parametrize(
    ("size", "reduced"),
    [
        ((512, 512), (512, 512)),
        ((513, 700), (512, 699)),
        ((800, 600), (683, 512)),
        ((2100, 1500), (717, 512)),
        ((600, 4800), (256, 2048)),
        ((5000, 300), (2048, 123)),
        ((300, 511), (300, 511)),
    ],
)
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_large_images_are_reduced(
    tmp_path: Path, size: tuple[int, int], reduced: tuple[int, int], suffix: str
) -> None:
    smooth(*size).save(path := tmp_path / f"x.{suffix}", quality=95)
    image = read_image(path)
    assert image.shape == (*reduced, 3) and reduced_size(size[::-1]) == reduced[::-1]
    small = Image.fromarray(pillow(path)).resize(reduced[::-1], Image.Resampling.BOX)
    assert difference(image, np.array(small)) < 1.5
    assert difference(read_image(path, reduce=False), pillow(path)) == 0


def test_a_long_thin_image_does_not_blow_up(tmp_path: Path) -> None:
    for suffix in ("jpg", "png"):
        Image.new("RGB", (60_000, 10), (9, 99, 199)).save(path := tmp_path / f"x.{suffix}", quality=95)
        image = read_image(path)
        assert image.shape == (1, 4 * LARGEST, 3)
        assert difference(image, np.full((1, 2048, 3), (9, 99, 199), np.uint8)) < 2


def test_a_jpeg_that_is_decoded_small_keeps_its_place(tmp_path: Path) -> None:
    # 65 rows are eight and an eighth at an eighth.
    ramp = np.arange(65, dtype=np.uint8)[:, None].repeat(32 * LARGEST + 1, 1) * 3
    Image.fromarray(ramp).save(path := tmp_path / "x.jpg", quality=95)
    expected = Image.fromarray(ramp).convert("RGB").resize((4 * LARGEST, 8), Image.Resampling.BILINEAR)
    assert difference(read_image(path), np.array(expected)) < 2


def test_reducing_blurs_what_is_too_fine(tmp_path: Path) -> None:
    # A chequerboard of single pixels becomes grey, not a pattern.
    board = (np.indices((3 * LARGEST, 3 * LARGEST)).sum(0) % 2 * 255).astype(np.uint8)
    for suffix in ("png", "jpg"):
        Image.fromarray(board).save(path := tmp_path / f"x.{suffix}", quality=100)
        image = read_image(path).astype(np.float32)
        assert abs(image.mean() - 127.5) < 2 and image.std() < 20


def test_a_large_jpeg_is_decoded_small(tmp_path: Path) -> None:
    Image.new("L", (9000, 6000), 90).save(path := tmp_path / "x.jpg")  # 54 megapixels
    image = read_image(path)
    assert image.shape == (512, 768, 3) and (image == 90).all()


def test_more_pixels_than_pillow_reads_are_an_error(tmp_path: Path) -> None:
    Image.new("1", (20_000, 9_000)).save(path := tmp_path / "x.png")  # 180 megapixels in a few bytes
    assert "179 million" in reason(path)


def test_pillow_does_not_write_on_the_console(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Image.new("L", (10_000, 9_500), 1).save(tmp_path / "large.jpg")  # 95 megapixels
    smooth(8, 8).save(tmp_path / "exif.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x09" + b"\x01\x0f\0\x02\0\0\0\xff")
    smooth(8, 8).convert("P").save(tmp_path / "palette.png", transparency=bytes(range(256)))
    for name in ("large.jpg", "exif.jpg"):  # they do make Pillow warn
        with pytest.warns(Warning), Image.open(tmp_path / name):
            pass
    paths = [tmp_path / name for name in ("exif.jpg", "large.jpg", "palette.png")]
    with warnings.catch_warnings(record=True) as seen, ThreadPoolExecutor(4) as threads:
        warnings.simplefilter("always")
        with warnings.catch_warnings():
            read_image(paths[0])
        assert [image.shape for image in threads.map(read_image, paths)] == [(8, 8, 3), (512, 539, 3), (8, 8, 3)]
        filters = list(warnings.filters)
        read_image(paths[0])
        assert warnings.filters == filters
    assert not [str(warning.message) for warning in seen]
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.jpg").write_text("no image\n")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "script.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    assert reason(tmp_path / "empty.jpg") == "it is empty"
    assert "none of JPEG" in reason(tmp_path / "text.jpg")
    assert "none of JPEG" in reason(tmp_path / "script.png")
    assert reason(tmp_path / "folder.jpg") == "Is a directory"
    assert reason(tmp_path / "gone.jpg") == "No such file or directory"
    assert reason(tmp_path / "zero\0byte.jpg")


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp", "gif", "tif", "ppm"])
def test_truncated_files_are_errors(tmp_path: Path, suffix: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (50, 60, 3), np.uint8)
    Image.fromarray(noise).save(path := tmp_path / f"x.{suffix}")
    whole = path.read_bytes()
    for kept in (0.02, 0.5, 0.9):
        path.write_bytes(whole[: int(len(whole) * kept)])
        assert reason(path)
        with pytest.raises((ValueError, OSError)):
            read_image(path, reduce=False)


def test_damage_never_raises_anything_else(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "x"
    readable = 0
    for suffix in ("jpeg", "png", "webp", "bmp", "gif", "ppm"):
        smooth(24, 31).save(whole := io.BytesIO(), suffix)
        for _ in range(40):
            damaged = np.frombuffer(whole.getvalue(), np.uint8).copy()
            damaged[rng.integers(4, len(damaged), 6)] = rng.integers(0, 256, 6)
            path.write_bytes(damaged.tobytes())
            try:
                readable += read_image(path).shape[2] == 3
            except (ValueError, OSError) as error:
                assert str(error) and "\n" not in str(error)
    assert 40 < readable < 240


def test_threads_read_what_a_single_one_does(tmp_path: Path) -> None:
    kinds = [("RGB", "jpg"), ("CMYK", "jpg"), ("P", "gif"), ("RGBA", "png"), ("L", "tif"), ("RGB", "webp")]
    paths = [tmp_path / f"{number}.{kinds[number % 6][1]}" for number in range(60)]
    for number, path in enumerate(paths):
        smooth(30 + number, 600, number).convert(kinds[number % 6][0]).save(path)
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(read_image, paths))
    assert all(np.array_equal(image, read_image(path)) for image, path in zip(together, paths, strict=True))


@pytest.mark.parametrize(
    ("mode", "options", "plain"),
    [
        ("RGB", {}, True),
        ("L", {}, True),
        ("RGB", {"progressive": True}, True),
        ("RGB", {"subsampling": 0, "optimize": True}, True),
        ("RGB", {"comment": b"x" * 3000, "icc_profile": b"y" * 40_000}, True),
        ("RGB", {"icc_profile": b"z" * 200_000}, False),  # more than is read of it
        ("RGB", {"keep_rgb": True}, False),
        ("CMYK", {}, False),
    ],
)
def test_the_header_of_a_plain_jpeg_says_its_size(mode: str, options: dict[str, Any], plain: bool) -> None:
    for height, width in [(1, 1), (37, 300), (500, 20)]:
        stream = io.BytesIO()
        smooth(height, width).convert(mode).save(stream, "JPEG", **options)
        file = stream.getvalue()
        assert plain_jpeg_size(file[: 1 << 16]) == ((width, height) if plain else None)
        rng = np.random.default_rng(height)
        for _ in range(200):  # whatever is damaged, it is a size or none
            damaged = bytearray(file[: int(rng.integers(0, 700))])
            for place in rng.integers(0, max(len(damaged), 1), 3):
                damaged[place : place + 1] = bytes([int(rng.integers(0, 256))])
            found = plain_jpeg_size(bytes(damaged))
            assert found is None or min(found) > 0


@pytest.mark.parametrize("content", [b"", b"\xff\xd8", b"\xff\xd8\xff", b"\x89PNG\r\n", b"\xff\xd8\xff\xd9" * 9])
def test_what_is_no_jpeg_has_no_header_of_one(content: bytes) -> None:
    assert plain_jpeg_size(content) is None


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "RGBA", "P"])
def test_whole_images_of_every_kind_are_rgb_of_their_own_size(tmp_path: Path, mode: str) -> None:
    random = np.random.default_rng(0)
    noise = Image.fromarray(random.integers(0, 256, (90, 110, 3), np.uint8)).resize((700, 900))
    path = tmp_path / ("x.png" if mode in ("RGBA", "P") else "x.jpg")
    noise.convert(mode).save(path)
    image = read_image(path, reduce=False)
    expected = np.array(Image.open(path).convert("RGB"))
    assert image.shape == (900, 700, 3) and np.abs(image.astype(int) - expected).mean() < 1


def test_a_whole_image_that_ends_early_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    Image.effect_noise((200, 200), 90).convert("RGB").save(path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(OSError, match="truncated"):
        read_image(path, reduce=False)


# Frames.


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_grey_and_cmyk_frames_become_rgb(mode: str) -> None:
    frame = decode_frame(jpeg(100, mode=mode))
    assert frame.shape == (16, 24, 3) and frame.dtype == np.uint8
    assert (np.abs(frame.astype(int) - 100) <= 3).all()


def test_a_frame_is_what_pillow_decodes() -> None:
    smooth(50, 70).save(file := io.BytesIO(), "JPEG", quality=90)
    expected = np.array(Image.open(file))
    for content in (file.getvalue(), bytearray(file.getvalue()), memoryview(file.getvalue())):
        assert np.array_equal(decode_frame(content), expected)


@pytest.mark.parametrize("broken", [b"no JPEG", jpeg(0)[:200], jpeg(0)[:-20]])
def test_a_broken_frame_is_an_error(broken: bytes) -> None:
    with pytest.raises(ValueError):
        decode_frame(broken)


def test_an_empty_or_altered_frame_is_named_as_such_and_not_decoded() -> None:
    with pytest.raises(ValueError, match="empty"):
        decode_frame(b"")
    with pytest.raises(ValueError, match="its checksum is wrong"):
        decode_frame(altered(10))
