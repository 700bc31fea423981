"""Ctrl-C, SIGTERM, and a cluster's warning end a run after the step at hand; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignal:
    """While this context is open, SIGINT, SIGTERM and SIGUSR2 set `number` instead of ending the process.

    SIGUSR2 is what Slurm is asked to send before a job's time is over, to every process of the job.

    A second signal gets the treatment it had before, so that nobody is kept waiting by a step that hangs. One that
    comes at once is the first one's echo: a terminal signals every process, and a launcher passes on what it hears.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
    ECHO_SECONDS = 1.0

    def __init__(self) -> None:
        self.number: int | None = None
        self._since = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is None:
            self.number, self._since = number, now
        elif now - self._since > self.ECHO_SECONDS:
            for other, handler in self._before.items():
                signal.signal(other, handler)
            signal.raise_signal(number)
