"""VTAB's data sets from original files: those that keep many images in one file."""

from __future__ import annotations

import gzip
import pickle
import re
import resource
import struct
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_originals import error, lengths
from torch import Tensor

from vivi.evaluate.examples import Examples
from vivi.evaluate.originals import dsprites, look, read_original


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(shape).integers(0, 256, shape, dtype=np.uint8)


def image(examples: Examples, index: int) -> Tensor:
    found = examples.images[index]
    assert isinstance(found, Tensor)
    return found


def check(examples: Examples, pixels: NDArray[np.uint8], labels: list[int]) -> None:
    """These images (count, 3, h, w) with these labels come out in this order, also from threads and once pickled."""
    assert examples.labels.dtype == torch.int64 and examples.labels.tolist() == labels
    copy = pickle.loads(pickle.dumps(examples.images))
    with ThreadPoolExecutor(4) as threads, warnings.catch_warnings():
        warnings.simplefilter("error")  # of memory that must not be written
        images = list(threads.map(partial(image, examples), range(len(examples))))
    assert len(images) == len(pixels) == len(copy)
    for found, wanted, again in zip(images, pixels, copy, strict=True):
        assert found.dtype == torch.uint8 and found.is_contiguous()
        assert torch.equal(found, torch.from_numpy(wanted.copy())) and torch.equal(again, found)


def check_dealt(first: Examples, second: Examples, pixels: NDArray[np.uint8], labels: list[int]) -> None:
    """Two splits together are these images, each once."""
    wanted = sorted((each.tobytes(), label) for each, label in zip(pixels, labels, strict=True))
    both = first.and_then(second)
    found = sorted((image(both, i).numpy().tobytes(), int(both.labels[i])) for i in range(len(both)))
    assert found == wanted


# --- CIFAR-100


def write_cifar(path: Path, count: int) -> tuple[NDArray[np.uint8], list[int]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels, labels = noise(count, 3, 32, 32), [(7 * i) % 100 for i in range(count)]
    path.write_bytes(b"".join(bytes([i % 20, labels[i]]) + pixels[i].tobytes() for i in range(count)))
    return pixels, labels


def test_cifar100_has_fine_labels_and_planes_of_colours(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    learn, test = write_cifar(folder / "train.bin", 30), write_cifar(folder / "test.bin", 4)
    original = read_original("cifar100", tmp_path)
    assert lengths(original) == (27, 3, 4)
    check(original.test, *test)
    check_dealt(original.train, original.val, *learn)
    assert look("cifar100", tmp_path).counts == {"train": 27, "val": 3, "test": 4}
    with (folder / "test.bin").open("r+b") as file:
        file.truncate(3074 * 4 - 1)
    assert re.search(r"test.bin is damaged.*12295 bytes", error("cifar100", tmp_path))
    assert "test.bin" in look("cifar100", tmp_path).problem
    (folder / "test.bin").write_bytes(bytes([0, 100]) + bytes(3072))
    assert re.search(r"test.bin is damaged.*label 100", error("cifar100", tmp_path))
    (folder / "test.bin").unlink()
    assert look("cifar100", tmp_path).missing == ("test.bin",)
    assert re.search(r"lacks test.bin.*cifar-100-binary.tar.gz", error("cifar100", tmp_path))


# --- SVHN


def write_svhn(path: Path, count: int) -> tuple[NDArray[np.uint8], list[int]]:
    savemat = pytest.importorskip("scipy.io").savemat
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels, digits = noise(count, 3, 32, 32), [i % 10 for i in range(count)]
    stored = np.array([[digit or 10] for digit in digits], dtype=np.uint8)  # the digit 0 has the label 10
    savemat(path, {"X": pixels.transpose(2, 3, 1, 0), "y": stored}, do_compression=True)
    return pixels, digits


def test_svhn_is_digits(tmp_path: Path) -> None:
    learn, test = write_svhn(tmp_path / "svhn/train_32x32.mat", 20), write_svhn(tmp_path / "svhn/test_32x32.mat", 5)
    original = read_original("svhn", tmp_path)
    assert lengths(original) == (18, 2, 5)
    check(original.test, *test)
    check_dealt(original.train, original.val, *learn)
    assert look("svhn", tmp_path).counts == {"train": 18, "val": 2, "test": 5}
    path = tmp_path / "svhn/test_32x32.mat"
    path.write_bytes(path.read_bytes()[:3000])
    assert re.search(r"test_32x32.mat is damaged", error("svhn", tmp_path))


# --- Patch Camelyon


def write_pcam(folder: Path, split: str, pixels: NDArray[np.uint8] | None, count: int) -> list[int]:
    h5py = pytest.importorskip("h5py")
    folder.mkdir(parents=True, exist_ok=True)
    labels = (np.arange(count) % 3 == 0).astype(np.uint8)
    with h5py.File(folder / f"camelyonpatch_level_2_split_{split}_x.h5", "w") as file:
        if pixels is None:
            file.create_dataset("x", (count, 96, 96, 3), dtype="u1", chunks=(64, 96, 96, 3))
        else:
            file.create_dataset("x", data=pixels.transpose(0, 2, 3, 1), chunks=True, compression="gzip")
    with h5py.File(folder / f"camelyonpatch_level_2_split_{split}_y.h5", "w") as file:
        file.create_dataset("y", data=labels.reshape(-1, 1, 1, 1))
    return [int(label) for label in labels]


def test_patch_camelyon_has_official_splits(tmp_path: Path) -> None:
    pixels = {"train": noise(7, 3, 16, 16), "valid": noise(3, 3, 16, 16), "test": noise(4, 3, 16, 16)}
    labels = {split: write_pcam(tmp_path / "pcam", split, images, len(images)) for split, images in pixels.items()}
    original = read_original("patch_camelyon", tmp_path)
    check(original.train, pixels["train"], labels["train"])
    check(original.val, pixels["valid"], labels["valid"])
    check(original.test, pixels["test"], labels["test"])


def test_bad_files_of_patch_camelyon_are_told(tmp_path: Path) -> None:
    pixels = {split: noise(3, 3, 16, 16) for split in ("train", "valid", "test")}
    for split, images in pixels.items():
        write_pcam(tmp_path / "pcam", split, images, len(images))
    path = tmp_path / "pcam/camelyonpatch_level_2_split_valid_x.h5"
    whole = path.read_bytes()
    for content in (b"", b"no HDF5", whole[:-200]):
        path.write_bytes(content)
        assert re.search(r"valid_x.h5 is damaged", error("patch_camelyon", tmp_path))
    write_pcam(tmp_path / "pcam", "valid", pixels["valid"], 2)
    assert re.search(r"valid_x.h5 is damaged.*for 2 labels", error("patch_camelyon", tmp_path))


def test_patch_camelyon_of_full_size_is_not_read_at_once(tmp_path: Path) -> None:
    for split, count in (("train", 262144), ("valid", 32768), ("test", 32768)):
        write_pcam(tmp_path / "pcam", split, None, count)
    assert look("patch_camelyon", tmp_path).counts == {"train": 262144, "val": 32768, "test": 32768}
    assert image(read_original("patch_camelyon", tmp_path).train, 262143).shape == (3, 96, 96)


def test_patch_camelyon_without_h5py_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pcam(tmp_path / "pcam", "train", noise(2, 3, 4, 4), 2)
    for split in ("valid", "test"):
        write_pcam(tmp_path / "pcam", split, noise(2, 3, 4, 4), 2)
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert error("patch_camelyon", tmp_path).endswith("pip install h5py")
    assert look("patch_camelyon", tmp_path).problem.endswith("pip install h5py")


# --- dSprites


class Trap:
    """What a pickle runs when it is loaded."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return pytest.fail, ("the pickle was loaded",)


def write_dsprites(path: Path, count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = noise(count, 8, 8) % 2
    high = [1, 3, 6, 40, 32, 32]
    factors = np.stack([np.random.default_rng(n).integers(0, n, count) for n in high], axis=1)
    metadata = np.array({"latents_names": Trap()}, dtype=object)
    np.savez_compressed(path, metadata=metadata, imgs=pixels, latents_classes=factors, latents_values=factors * 1.0)
    return pixels, factors


NPZ = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"


def sixteenth(value: int, width: float) -> int:
    for index in range(16):
        if index * width <= value < (index + 1) * width:
            return index
    raise AssertionError(value)


def test_dsprites_groups_positions_and_orientations_into_sixteen() -> None:
    factors = np.zeros((40, 6), dtype=np.int64)
    factors[:, 3], factors[:, 4] = range(40), [i % 32 for i in range(40)]
    assert dsprites.orientation(factors).tolist() == [sixteenth(i, 2.5) for i in range(40)]
    assert dsprites.location(factors).tolist() == [sixteenth(i % 32, 2) for i in range(40)]


@pytest.mark.parametrize(("name", "column", "width"), [("dsprites_location", 4, 2), ("dsprites_orientation", 3, 2.5)])
def test_dsprites_is_read_without_its_pickle(name: str, column: int, width: float, tmp_path: Path) -> None:
    pixels, factors = write_dsprites(tmp_path / "dsprites" / NPZ, 50)
    assert look(name, tmp_path).counts == {"train": 40, "val": 5, "test": 5}
    assert [path.name for path in (tmp_path / "dsprites").iterdir()] == [NPZ], "looking writes nothing"
    original = read_original(name, tmp_path)
    assert lengths(original) == (40, 5, 5)
    rgb = np.repeat(pixels[:, None] * 255, 3, axis=1)
    labels = [sixteenth(int(value), width) for value in factors[:, column]]
    check_dealt(original.train, original.val.and_then(original.test), rgb, labels)
    assert len({path.name for path in (tmp_path / "dsprites").iterdir()}) == 2, (
        "unpacked beside it, nothing else left"
    )
    third = image(original.val, 2)
    assert torch.equal(image(read_original(name, tmp_path).val, 2), third)
    np.save(tmp_path / "dsprites" / f"{NPZ[:-4]}.imgs.npy", np.zeros((3, 2, 2), np.uint8))  # of something else
    assert torch.equal(image(read_original(name, tmp_path).val, 2), third)


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow beyond 1000 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_without_room_to_unpack_dsprites_is_read_into_memory(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pixels, _ = write_dsprites(tmp_path / NPZ, 50)
    request.getfixturevalue("full_disk")
    original = read_original("dsprites_location", tmp_path)
    found = {image(original.train, i).numpy().tobytes() for i in range(40)}
    assert found <= {np.repeat(each[None] * 255, 3, axis=0).tobytes() for each in pixels}
    assert [path.name for path in tmp_path.iterdir()] == [NPZ]


def test_without_leave_to_write_dsprites_is_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dsprites(tmp_path / NPZ, 50)

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("vivi.evaluate.originals.unpack.tempfile.mkstemp", refuse)
    assert image(read_original("dsprites_location", tmp_path).train, 0).shape == (3, 8, 8)
    assert [path.name for path in tmp_path.iterdir()] == [NPZ]


def test_bad_files_of_dsprites_are_told(tmp_path: Path) -> None:
    path = tmp_path / NPZ
    write_dsprites(path, 50)
    whole = path.read_bytes()
    for content in (b"", b"no zip file", whole[: len(whole) // 2], pickle.dumps(Trap())):
        path.write_bytes(content)
        assert re.search(r"64x64.npz is damaged", error("dsprites_location", tmp_path))
    np.savez(path, imgs=np.zeros((2, 8, 8), np.uint8))
    assert re.search(r"64x64.npz is damaged.*latents_classes", error("dsprites_location", tmp_path))
    np.savez(path, imgs=np.zeros((2, 8, 8), np.uint8), latents_classes=np.zeros((3, 6), np.int64))
    assert re.search(r"64x64.npz is damaged.*3 rows", error("dsprites_location", tmp_path))
    np.savez(path, imgs=np.zeros((2, 8, 8), np.uint8), latents_classes=np.full((2, 6), 40))
    assert re.search(r"64x64.npz is damaged.*beyond 39", error("dsprites_location", tmp_path))
    np.savez(path, imgs=np.array([Trap()], dtype=object), latents_classes=np.zeros((1, 6), np.int64))
    assert re.search(r"64x64.npz is damaged", error("dsprites_location", tmp_path))


# --- SmallNORB

NORB = {
    "training": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "testing": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}


def matrix(array: NDArray[Any]) -> bytes:
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[array.dtype.name]
    shape = (*array.shape, *[1] * (3 - array.ndim))
    return struct.pack(f"<Ii{len(shape)}i", magic, array.ndim, *shape) + array.tobytes()


def write_norb(folder: Path, split: str, count: int, zipped: bool) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = noise(count, 2, 9, 9)
    columns = [(np.arange(count) * step) % modulus for step, modulus in ((1, 10), (4, 9), (6, 36), (1, 6))]
    info = np.stack(columns, axis=1).astype(np.int32)
    for part, array in (("dat", pixels), ("info", info), ("cat", info[:, 0].copy())):
        data = matrix(array)
        name = f"{NORB[split]}-{part}.mat" + (".gz" if zipped else "")
        (folder / name).write_bytes(gzip.compress(data) if zipped else data)
    return pixels, info


@pytest.mark.parametrize("zipped", [False, True])
def test_smallnorb_sees_azimuth_and_elevation_by_the_first_camera(zipped: bool, tmp_path: Path) -> None:
    train, train_info = write_norb(tmp_path / "smallnorb", "training", 20, zipped)
    test, test_info = write_norb(tmp_path / "smallnorb", "testing", 12, zipped)
    before = {path.name for path in (tmp_path / "smallnorb").iterdir()}
    for name, labels, test_labels in (
        ("smallnorb_azimuth", train_info[:, 2] // 2, test_info[:, 2] // 2),
        ("smallnorb_elevation", train_info[:, 1], test_info[:, 1]),
    ):
        assert look(name, tmp_path).counts == {"train": 20, "val": 6, "test": 6}
        assert name.endswith("elevation") or {path.name for path in (tmp_path / "smallnorb").iterdir()} == before
        original = read_original(name, tmp_path)
        check(original.train, np.repeat(train[:, :1], 3, axis=1), labels.tolist())
        check_dealt(original.val, original.test, np.repeat(test[:, :1], 3, axis=1), test_labels.tolist())


def test_bad_files_of_smallnorb_are_told(tmp_path: Path) -> None:
    for split in NORB:
        write_norb(tmp_path, split, 10, zipped=False)
    dat, info = (tmp_path / f"{NORB['testing']}-{part}.mat" for part in ("dat", "info"))
    whole = dat.read_bytes()
    for content in (
        b"",
        whole[:10],
        whole[:-1],
        b"\0" + whole[1:],
        matrix(noise(9, 2, 9, 9)),
        matrix(noise(10, 9, 9)),
    ):
        dat.write_bytes(content)
        assert re.search(r"testing-dat.mat is damaged", error("smallnorb_azimuth", tmp_path))
    for values in ([0, 0, 3, 0], [0, 0, 36, 0], [0, 0, -2, 0]):
        info.write_bytes(matrix(np.array([values] * 10, dtype=np.int32)))
        assert re.search(r"testing-info.mat is damaged", error("smallnorb_azimuth", tmp_path))
    info.write_bytes(matrix(np.array([[0, 9, 0, 0]], dtype=np.int32)))
    assert "testing-info.mat is damaged" in error("smallnorb_elevation", tmp_path)
    assert "testing-info.mat is damaged" in look("smallnorb_elevation", tmp_path).problem


def test_a_cut_archive_of_smallnorb_is_told(tmp_path: Path) -> None:
    for split in NORB:
        write_norb(tmp_path, split, 10, zipped=True)
    path = tmp_path / f"{NORB['training']}-dat.mat.gz"
    path.write_bytes(path.read_bytes()[:-20])
    assert re.search(r"training-dat.mat.gz is damaged", error("smallnorb_azimuth", tmp_path))
    assert not any(name.name.startswith(".") or name.name.endswith("training-dat.mat") for name in tmp_path.iterdir())
