"""vivi export."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rich.console import Console
from tyro.conf import OmitArgPrefixes

from vivi.answers.settings import ExportSettings
from vivi.cli.command import Command


@dataclass(frozen=True)
class Export(Command):
    """Make a folder of an encoder that loads without vivi, with a model card and a test vector."""

    examples: ClassVar = (
        "vivi export run/ --to timm --out model/",
        "vivi export run/ --to onnx --out model/ --normalise-inside",
    )

    settings: OmitArgPrefixes[ExportSettings]

    def run(self, console: Console) -> dict[str, Any]:
        self.settings.check()
        from vivi.answers.export import export

        export(self.settings, console)
        return {"folder": self.settings.out}
