"""vivi export."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from tyro.conf import OmitArgPrefixes

from vivi.answers.settings import ExportSettings


@dataclass(frozen=True)
class Export:
    """Make a folder of an encoder that loads without vivi, with a model card and a test vector."""

    settings: OmitArgPrefixes[ExportSettings]

    def run(self, console: Console) -> None:
        self.settings.check()
        from vivi.answers.export import export

        export(self.settings, console)
