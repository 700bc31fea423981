"""When a benchmark ends before it is complete: its time is up, or a signal came."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator

from comt_cli.errors import RunInterrupted
from comt_cli.lab.bench.failures import Outcome
from comt_cli.training.processes import StopSignal


class Deadline:
    """A point in time, the seconds to it, and as a `GoOn` whether there are any. Asking raises `KeyboardInterrupt` once
    `stop` has received a signal: where it is asked, nothing is half done."""

    def __init__(self, seconds: float, stop: StopSignal | None = None, clock: Callable[[], float] = time.monotonic):
        self._end, self._stop, self._clock = clock() + seconds, stop, clock

    def left(self) -> float:
        """Seconds; below 0 when it has passed."""
        if self._stop is not None and self._stop.number is not None:
            raise KeyboardInterrupt
        return self._end - self._clock()

    def __call__(self) -> bool:
        return self.left() > 0


@contextlib.contextmanager
def measuring(
    outcome: Outcome,
    seconds: float | None,
    counted: str = "rows",
    hint: str = "The same command measures all of it anew.",
) -> Iterator[Deadline]:
    """What measures within this context asks the deadline, which so many seconds from now or a signal brings.

    Raises:
        RunInterrupted: a signal came; what whole rounds had measured has been passed on.
        NotMeasured: see `Outcome.end`.
    """

    def announce(again: bool) -> None:
        # In a signal's handler: past the buffer, of which it may have interrupted a line.
        with contextlib.suppress(OSError):
            os.write(2, b"stopping at once\n" if again else b"stopping after the part at hand; again: at once\n")

    with StopSignal(announce) as stop:
        try:
            yield Deadline(math.inf if seconds is None else seconds, stop)
        except KeyboardInterrupt:
            if stop.number is None:
                raise
    if stop.number is not None:
        rows = f"{counted} measured: {outcome.rows}, those cut short not settled"
        said = rows if outcome.rows else "nothing was measured in a whole round"
        raise RunInterrupted(f"interrupted: {said}", hint, stop.number)
    outcome.end()
