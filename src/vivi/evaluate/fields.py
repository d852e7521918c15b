"""Dataclasses out of JSON: every value is checked against the type that its field declares."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def read_fields(kind: type[T], content: Any) -> T:
    """A dataclass of a JSON object; a ValueError names the field that is wrong, or missing, or not known."""
    found: T = _value(kind, content, "")
    return found


def _value(kind: Any, value: Any, name: str) -> Any:
    """A value as its field declares it; JSON's lists become tuples."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass(kind, value, name)
    if origin in (Union, UnionType):  # X | None
        return None if value is None else _value(next(one for one in inner if one is not type(None)), value, name)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(inner[0], one, f"{name}[{place}]") for place, one in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _value(inner[1], one, f"{name}.{key}") for key, one in value.items()}
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if (
        kind is Any
        or (kind in (str, bool) and type(value) is kind)
        or (kind is int and type(value) is int and abs(value) < 2**63)
        or (origin is Literal and isinstance(value, str) and value in inner)
    ):
        return value
    raise ValueError(f"{name} is {str(value)[:40]!r}, which it cannot be")


def _dataclass(kind: Any, content: Any, name: str) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f"{name or 'it'} is no object")
    types = _types(kind)
    prefix = f"{name}." if name else ""
    for known in fields(kind):
        if known.name not in content and known.default is MISSING and known.default_factory is MISSING:
            raise ValueError(f"{prefix}{known.name} is missing")
    for given in content:
        if given not in types:
            raise ValueError(f"{prefix}{given[:40]} is not known")
    return kind(**{given: _value(types[given], value, f"{prefix}{given}") for given, value in content.items()})


@lru_cache(maxsize=32)
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
