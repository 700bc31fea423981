"""Signals are answered at once, echoes apart."""

from __future__ import annotations

import signal

import pytest

from comt_cli.training import processes
from comt_cli.training.processes import StopSignal


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(processes.time, "monotonic", lambda: now[0])
    return now


def test_the_first_signal_and_the_second_are_announced_and_echoes_are_not(clock):
    heard: list[object] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("as before"))
    try:
        with StopSignal(heard.append) as stop:
            signal.raise_signal(signal.SIGTERM)
            assert heard == [False]
            assert stop.number == signal.SIGTERM
            signal.raise_signal(signal.SIGINT)  # a terminal's, passed on by a launcher
            assert heard == [False]
            clock[0] += 1.5
            signal.raise_signal(signal.SIGTERM)
            assert heard == [False, True, "as before"]
    finally:
        signal.signal(signal.SIGTERM, before)
