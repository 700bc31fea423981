"""Ctrl-C, SIGTERM, and a cluster's warning end a run after the step at hand; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignal:
    """While this context is open, SIGINT, SIGTERM and SIGUSR2 set `number` instead of ending the process.

    SIGUSR2 is what Slurm is asked to send before a job's time is over, to every process of the job.

    A second signal gets the treatment it had before, so that nobody is kept waiting by a step that hangs. One that
    comes at once is the first one's echo: a terminal signals every process, and a launcher passes on what it hears.

    `announce(again)` is called at once, in the signal's handler, so that whoever asked sees that they were heard: with
    False at the first signal and with True at the second.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
    ECHO_SECONDS = 1.0

    def __init__(self, announce: Callable[[bool], None] | None = None) -> None:
        self.number: int | None = None
        self._announce = announce
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
            self._tell(again=False)
        elif now - self._since > self.ECHO_SECONDS:
            self._tell(again=True)
            for other, handler in self._before.items():
                signal.signal(other, handler)
            signal.raise_signal(number)

    def _tell(self, *, again: bool) -> None:
        if self._announce is not None:
            self._announce(again)
