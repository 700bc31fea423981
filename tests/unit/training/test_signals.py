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


def test_the_end_of_the_processor_time_is_told_every_second_and_is_one_signal(clock):
    with StopSignal() as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGXCPU)  # a second one would end the tests
            clock[0] += 1.5
        assert stop.number == signal.SIGXCPU
    now = signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    assert now is signal.SIG_IGN  # it comes again, while tables are written
    with StopSignal() as outer:
        with StopSignal():
            signal.raise_signal(signal.SIGXCPU)
        assert outer.number is None
        signal.raise_signal(signal.SIGXCPU)
        assert outer.number == signal.SIGXCPU
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)


def test_a_closed_terminal_stops_a_run_but_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.number is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    with StopSignal() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.number == signal.SIGHUP
