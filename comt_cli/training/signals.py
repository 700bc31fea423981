"""Ctrl-C and SIGTERM end a run after the step at hand; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignal:
    """While this context is open, SIGINT and SIGTERM set `number` instead of ending the process.

    The second signal gets the default treatment, so that nobody is kept waiting by a step that hangs.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.number: int | None = None
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
        self.number = number
        for other in self.SIGNALS:
            signal.signal(other, signal.default_int_handler if other == signal.SIGINT else signal.SIG_DFL)
