"""How a benchmark ends: what cannot be measured is reported and the rest is measured; its time is up; a signal came."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from comt_cli.errors import RunInterrupted, UserError
from comt_cli.training.processes import StopSignal


class Failed(str):
    """A line of progress that says what failed, so that the command does not end as if all had been well."""

    __slots__ = ()


class NotMeasured(UserError):
    """A part of what was wanted has not been measured, or nothing at all has."""

    exit_status = 1


def failed(what: str, error: Exception) -> Failed:
    """`60m bf16 swiglu: failed (RuntimeError: the first line of it)`; an error that is written for people as it is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, UserError):
        return Failed(f"{what}: failed ({'; '.join(lines)})")
    return Failed(f"{what}: failed ({': '.join([type(error).__name__, *lines[:1]])})")


@dataclass
class Outcome:
    """How many rows a command has measured, and the lines that say what failed."""

    rows: int = 0
    failed: list[str] = field(default_factory=list)

    def add(self, news: str | Sequence[object]) -> None:
        """Count what a benchmark yields: rows, or a line."""
        if isinstance(news, Failed):
            self.failed.append(news)
        elif not isinstance(news, str):
            self.rows += len(news)

    def end(self) -> None:
        """Nothing where all went well, left-out variants included.

        Raises:
            NotMeasured: something failed, or there is not one row.
        """
        if self.failed:
            count = f"{len(self.failed)} part{'s' if len(self.failed) != 1 else ''} failed"
            rest = "the rest was measured" if self.rows else "nothing was measured"
            raise NotMeasured(f"{count}, {rest}", "\n  ".join(self.failed))
        if not self.rows:
            raise NotMeasured("nothing was measured: all of it was left out", "The lines above say why.")


class Deadline:
    """A point in time, and whether it is still to come when it is called. Asking raises `KeyboardInterrupt` once `stop`
    has received a signal: where it is asked, nothing is half done."""

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
