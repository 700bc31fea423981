"""Standard streams that may be closed, lack characters, or lose their reader. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO


def mend_streams() -> None:
    """Make the standard streams of this process accept any output. Cron and some launchers close them; the next opened
    file, perhaps a checkpoint, would get their number. Characters that the encoding lacks are printed as escapes."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
    for written in (sys.stdout, sys.stderr):
        if getattr(written, "errors", None) == "strict" and hasattr(written, "reconfigure"):
            written.reconfigure(errors="backslashreplace")
    if not isinstance(sys.stderr, Lasting):
        sys.stderr = Lasting(sys.stderr)


class Lasting:
    """A stream of messages that survives the loss of its reader: a closed terminal, a killed `| tee log`, a full disk.
    Later output is discarded, and training continues."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write to the stream while it accepts output."""
        try:
            return self._stream.write(text)
        except OSError:
            let_go(self._stream)
            return len(text)

    def flush(self) -> None:
        """Flush the stream while it accepts output."""
        try:
            self._stream.flush()
        except OSError:
            let_go(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def let_go(stream: TextIO) -> None:
    """Discard the buffer of a stream and all later output, so that the interpreter can exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
