"""The command line: one small file per command."""

import sys


def main() -> None:
    """The command `vivi`; Ctrl-C while it is still being imported says as much as afterwards."""
    try:
        from vivi.cli.main import run
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    run()
