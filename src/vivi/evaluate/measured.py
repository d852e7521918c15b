"""What every result has, whatever was measured."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Where a result comes from."""

    notes: tuple[str, ...] = ()  # what else there is to know: what was left out, and why
    picture: str = ""  # a PNG beside the result's file
    encoder_from: str = ""  # as it was given
    encoder_checksum: str = ""
    data_checksum: str = ""
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)
