"""What a command does before its runs begin: signs of life, and signals."""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from comt_cli.errors import RunInterrupted
from comt_cli.training.many import launch, table
from comt_cli.training.many.progress import Display
from comt_cli.training.many.queue import RunQueue


@pytest.fixture
def without_torch(monkeypatch):
    """As in a process that has not imported it."""
    monkeypatch.setattr(launch, "sys", SimpleNamespace(modules={}, stderr=sys.stderr))


@pytest.fixture
def trained(monkeypatch) -> list[object]:
    """The stop signals that `train_queue` was handed."""
    heard: list[object] = []
    monkeypatch.setattr(table, "train_queue", lambda queue, device, display, stop, datasets: heard.append(stop))
    return heard


def test_one_process_says_that_it_starts_pytorch(without_torch, trained, tmp_path, capsys):
    launch._train_here(RunQueue([], tmp_path), "cpu")
    assert capsys.readouterr().err.splitlines()[0] == "starting PyTorch ..."
    assert len(trained) == 1


def test_a_signal_while_it_starts_is_an_interruption(without_torch, trained, tmp_path, monkeypatch):
    class Impatient(Display):
        def preparing(self, stage, done, total):
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(launch, "make_display", lambda is_main: Impatient())
    with pytest.raises(RunInterrupted) as stopped:
        launch._train_here(RunQueue([], tmp_path), "cpu")
    assert stopped.value.exit_status == 143
    assert trained == []
    assert signal.getsignal(signal.SIGTERM) is before
