"""Standard streams that may be closed, lack letters, or lose their reader. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO


def mend_streams() -> None:
    """Have this process's standard streams take whatever is printed. Cron and some launchers close them, and the next
    file that is opened, a checkpoint perhaps, would get their number. Of a letter that the encoding lacks the code is
    printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
    for written in (sys.stdout, sys.stderr):
        if getattr(written, "errors", None) == "strict" and hasattr(written, "reconfigure"):
            written.reconfigure(errors="backslashreplace")
    if not isinstance(sys.stderr, Lasting):
        sys.stderr = Lasting(sys.stderr)


class Lasting:
    """A stream of messages whose reader may go away: the terminal was closed, `| tee log` was killed, the disk of a log
    is full. What is written after that goes nowhere, and ends no training."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As the stream's."""
        try:
            return self._stream.write(text)
        except OSError:
            let_go(self._stream)
            return len(text)

    def flush(self) -> None:
        """As the stream's."""
        try:
            self._stream.flush()
        except OSError:
            let_go(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def let_go(stream: TextIO) -> None:
    """Have what is left in a stream's buffer, and what follows, go nowhere, so that the interpreter can end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
