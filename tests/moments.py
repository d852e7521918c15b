"""vivi commands that get a signal at a moment chosen beforehand, however fast or slow the machine is.

A test that watches a process from outside and then sends the signal may come too late on a busy machine. Here the
process sends it to itself, when it has opened, made, renamed or removed the nth path of a pattern.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SIGNALLED = """
import fnmatch, os, signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C
number, nth, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
group, pattern = sys.argv[4] == "group", sys.argv[5]
sys.argv = ["vivi", *sys.argv[6:]]

def send():
    os.killpg(0, number) if group else os.kill(os.getpid(), number)

def watch(event, arguments):
    global nth
    if event not in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"):
        return
    path = arguments[event == "os.rename"]
    if isinstance(path, (str, os.PathLike)) and fnmatch.fnmatch(os.fspath(path), pattern):
        nth -= 1
        if nth == 0:
            threading.Timer(seconds, send).start() if seconds else send()

if __name__ == "__main__":  # not in the workers, which import this
    sys.addaudithook(watch)
    from vivi.cli import main
    main()
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    """A vivi command as the leader of a process group of its own."""
    return _start(["-m", "vivi", *map(str, arguments)])


def start_signalled(
    number: int, pattern: Path, nth: int, *arguments: object, group: bool = False, seconds: float = 0
) -> subprocess.Popen[str]:
    """The same, which signals itself, or its whole group, so many seconds after the nth touch of such a path."""
    words = [int(number), nth, seconds, "group" if group else "itself", pattern, *arguments]
    return _start(["-c", SIGNALLED, *map(str, words)])


def _start(words: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
