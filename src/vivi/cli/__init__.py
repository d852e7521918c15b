"""The command line: one small file per command."""

from vivi.cli.main import main

__all__ = ["main"]
