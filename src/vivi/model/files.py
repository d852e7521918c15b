"""Files of tensors and of facts about them, each with a checksum of its own content.

A disk, a network or a person may alter a file without a trace. The checksum tells: a safetensors file has it in its
metadata, where other readers pass over it, a JSON file in the field `checksum`. A file without one is read as it is:
older runs have none, nor have the files of others. It protects against accidents, not against forgery.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from vivi.errors import UserError, first_line
from vivi.storage import json_crc32, write_atomically

_KEY = "vivi_checksum"  # in the metadata of a safetensors file


def checksum(about: str, tensors: Mapping[str, Tensor]) -> str:
    """A CRC-32 of `about` and of the name, type, shape and bytes of tensors that lie in main memory, row by row."""
    value = zlib.crc32(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file, which any reader of such files can read."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, _ordered(save(plain, {"format": "pt", _KEY: checksum("", plain)})))


def _ordered(content: bytes) -> bytes:
    """The same file with its metadata sorted: safetensors writes it in any order, and equal runs are equal bytes."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
    return b"".join((len(text).to_bytes(8, "little"), text, memoryview(content)[end:]))


def parse_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    """The tensors in the content of a safetensors file; raises where it does not match its checksum."""
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise UserError(f"{path} cannot be read ({first_line(error)})") from None
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    check_tensors(tensors, header.get("__metadata__"), path)
    return tensors


def check_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None, path: Path) -> None:
    """Raises where tensors do not match the checksum in their file's metadata, if it has one."""
    expected = (metadata or {}).get(_KEY)
    if expected is not None and expected != checksum("", tensors):
        raise UserError(f"{path} was altered or damaged: it does not match its checksum; copy it again from its run")


def check_values(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], where: object) -> None:
    """Raises where weights are not finite floating numbers, as those of the network's own that they replace."""
    for name, tensor in tensors.items():
        if name not in own or not own[name].is_floating_point():
            continue
        if not tensor.is_floating_point() or tensor.layout != torch.strided or tensor.is_meta:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise UserError(
                f"{where} holds values that are no plain floating numbers (tensor {name[:200]}, {kind}); "
                "save it again as float32"
            )
        if not torch.isfinite(tensor.to(own[name].dtype)).all():
            raise UserError(
                f"{where} holds values that are not finite (tensor {name[:200]}); take a copy that is not damaged"
            )


def write_facts(path: Path, facts: Mapping[str, Any], indent: int) -> None:
    """A JSON file of these fields."""
    sealed = {**facts, "checksum": f"{json_crc32(facts):08x}"}
    write_atomically(path, json.dumps(sealed, indent=indent).encode() + b"\n")


def check_facts(facts: Mapping[str, Any], path: Path) -> None:
    """Raises where the fields of a JSON file do not match their checksum, if it has one."""
    fields = dict(facts)
    expected = fields.pop("checksum", None)
    if expected is not None and expected != f"{json_crc32(fields):08x}":
        raise UserError(
            f"{path} was altered or damaged: it does not match its checksum; copy it again from its run, "
            "or remove its field 'checksum' if the change is meant"
        )
