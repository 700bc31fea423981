"""How processes that train together ended, in words, and the last lines of their standard error.

Where one of two processes dies the other dies too, and its complaint, that its peer reset the connection, would be all
that is seen. So the first death is reported with its exit status or signal, and with the stack that `faulthandler`
writes where native code fails.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection

LINES = 12
"""How many of a process's last lines are kept."""
_LONGEST = 2000


def ending(exitcode: int | None) -> str:
    """How a process ended, by the exit code that `multiprocessing` has of it."""
    if exitcode is None:
        return "has not ended"
    if exitcode >= 0:
        return f"ended with status {exitcode}"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = f"signal {-exitcode}"
    if -exitcode == signal.SIGKILL:
        return f"was killed by {name}, as the system does where memory runs out"
    return f"was killed by {name}"


def endings(codes: Sequence[int | None], order: Sequence[int]) -> str:
    """One sentence on the processes that failed, by rank, the first to fail first; the others were their victims."""
    ended = [f"process {rank} of {len(codes)} {ending(codes[rank])}" for rank in order]
    return "; then ".join(ended)


class StandardError:
    """What a process writes to its standard error: passed on to ours as it comes, and its last lines kept."""

    def __init__(self, reader: Connection) -> None:
        self._reader = reader
        self._lines: deque[str] = deque(maxlen=LINES)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while piece := os.read(self._reader.fileno(), 1 << 16):
                with contextlib.suppress(OSError, ValueError):  # nobody reads ours any more
                    sys.stderr.write(piece.decode("utf-8", errors="replace"))
                    sys.stderr.flush()
                *lines, rest = (rest + piece).split(b"\n")
                self._keep(lines)
                rest = rest[-_LONGEST:]
        self._keep([rest])

    def _keep(self, lines: Sequence[bytes]) -> None:
        shown = (line.decode("utf-8", errors="replace").rstrip()[:_LONGEST] for line in lines)
        self._lines.extend(line for line in shown if line)

    def last_lines(self) -> list[str]:
        """Its last lines, once it has ended. Something that it started may hold its standard error open for longer."""
        self._thread.join(timeout=5)
        return list(self._lines)


def redirect_standard_error(writer: Connection | None) -> None:
    """In a process: have its standard error go to `writer` (None: where its parent's goes), and a fault in native code
    write every thread's stack there before it ends the process."""
    if writer is not None:
        sys.stderr.flush()
        os.dup2(writer.fileno(), 2)
        writer.close()
    faulthandler.enable(file=2)
