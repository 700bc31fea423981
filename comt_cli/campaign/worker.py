"""A process that trains one run after the other on its device, as its parent hands them out.

It sends through the pipe: `READY` once it can train; the `Event`s of its run; a `RunOutcome` when a run has ended; a
`UserError` that ends the process: an interruption, a full disk, a device that is not there. It also ends when the
parent closes the pipe.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from comt_cli.campaign.outcomes import Ending
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.training.events import Evaluating, Event, StepReport
from comt_cli.training.processes import StopSignal, begin_as_worker, end_process

if TYPE_CHECKING:
    from comt_cli.tasks.base import AnyDataset

READY = "ready"
SECONDS_BETWEEN_REPORTS = 0.2
"""A tiny model logs hundreds of steps a second; nobody reads that fast."""


class Reporter:
    """Sends the events of a run of `steps` steps: five a second of its steps and evaluated batches, and all others."""

    def __init__(self, pipe: Connection, steps: int) -> None:
        self._pipe, self._steps = pipe, steps
        self._sent = 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case StepReport(step) if step < self._steps:
                is_frequent = True
            case Evaluating(done) if done:
                is_frequent = True
            case _:
                is_frequent = False
        if is_frequent:
            now = time.monotonic()
            if now - self._sent < SECONDS_BETWEEN_REPORTS:
                return
            self._sent = now
        send(self._pipe, event)


def send(pipe: Connection, message: object) -> None:
    """Send a message; end the process if nobody receives it: it would keep its run locked."""
    try:
        pipe.send(message)
    except OSError:
        os._exit(1)


def work(pipe: Connection, runs: Path, device: str, threads: int | None) -> None:
    """The process's work. It is started with all signals of `StopSignal` blocked, so that none is lost or comes too
    early."""
    begin_as_worker()
    with StopSignal() as stop:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, StopSignal.SIGNALS)
        try:
            _train_all(pipe, runs, device, threads, stop)
        except UserError as error:
            send(pipe, error)
        except EOFError:  # no more work
            pass
    end_process(0)  # all is sent and saved; taking the interpreter down with torch in it can take seconds


def _train_all(pipe: Connection, runs: Path, device: str, threads: int | None, stop: StopSignal) -> None:
    import torch

    from comt_cli.campaign.attempt import attempt
    from comt_cli.training.devices import pick_device
    from comt_cli.training.parallel import World

    if threads is not None:
        torch.set_num_threads(threads)
    world = World(pick_device(device))
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    datasets: dict[str, AnyDataset] = {}
    send(pipe, READY)
    while True:
        shared = pipe.recv()
        if stop.number is not None:
            raise RunInterrupted("stopped before it was begun", None, stop.number)
        spec = shared.spec
        if spec.data_fingerprint not in datasets:  # the parent has prepared it: this opens it
            datasets[spec.data_fingerprint] = spec.task.prepare(spec.settings)
        reporter = Reporter(pipe, spec.settings.train.steps)
        outcome = attempt(shared, runs, datasets[spec.data_fingerprint], world, reporter, stop)
        send(pipe, outcome)
        if outcome.ending is Ending.failed:
            return  # what failed may have left the device or the memory in any state: the next one starts afresh
