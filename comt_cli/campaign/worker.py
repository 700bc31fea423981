"""A process that trains one run after the other on its device, as its parent hands them out.

What it says through the pipe: (READY,) once it can train; (HEAR, method, arguments) what a `Listener` is told;
(OUTCOME, RunOutcome) what became of a run; (ERROR, UserError) what ends it: an interruption, a full disk, a device that
is not there. It ends when the parent closes the pipe.
"""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.campaign.outcomes import Ending
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.runs.plan import RunSpec
from comt_cli.training.processes import die_with_parent, end_process
from comt_cli.training.progress import Listener, StepReport
from comt_cli.training.signals import StopSignal

if TYPE_CHECKING:
    from comt_cli.tasks.base import AnyDataset

READY, HEAR, OUTCOME, ERROR = "ready", "hear", "outcome", "error"
SECONDS_BETWEEN_REPORTS = 0.2
"""A tiny model logs hundreds of steps a second; nobody reads that fast."""


class Reporter(Listener):
    """Passes on to the parent what happens to a run. The parent knows which run it is."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._spoke = 0.0
        self._steps = 0

    def run_started(self, spec: RunSpec, step: int) -> None:
        self._steps = spec.settings.train.steps
        self._send("run_started", step)

    def step_done(self, report: StepReport) -> None:
        if time.monotonic() - self._spoke >= SECONDS_BETWEEN_REPORTS or report.step == self._steps:
            self._spoke = time.monotonic()
            self._send("step_done", report)

    def evaluating(self) -> None:
        self._send("evaluating")

    def evaluated(self, done: int, total: int) -> None:
        if time.monotonic() - self._spoke >= SECONDS_BETWEEN_REPORTS:
            self._spoke = time.monotonic()
            self._send("evaluated", done, total)

    def warn(self, text: str) -> None:
        self._send("warn", text)

    def _send(self, *event: Any) -> None:
        say(self._pipe, HEAR, event[0], event[1:])


def say(pipe: Connection, *message: Any) -> None:
    """Send a message; end the process if there is nobody to hear it: it would keep its run locked."""
    try:
        pipe.send(message)
    except OSError:
        os._exit(1)


def work(pipe: Connection, runs: Path, device: str, threads: int | None) -> None:
    """The process's work. It is started with SIGINT and SIGTERM blocked, so that none is missed or heard too early."""
    die_with_parent()
    for number in StopSignal.SIGNALS:  # what a second signal does: end the process, without a traceback
        signal.signal(number, signal.SIG_DFL)
    with StopSignal() as stop:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, StopSignal.SIGNALS)
        try:
            _train_what_comes(pipe, runs, device, threads, stop)
        except UserError as error:
            say(pipe, ERROR, error)
        except EOFError:  # no more work
            pass
    end_process(0)  # all is said and saved; taking the interpreter down with torch in it can take seconds


def _train_what_comes(pipe: Connection, runs: Path, device: str, threads: int | None, stop: StopSignal) -> None:
    import torch

    from comt_cli.campaign.attempt import attempt
    from comt_cli.training.devices import pick_device
    from comt_cli.training.world import World

    if threads is not None:
        torch.set_num_threads(threads)
    world = World(pick_device(device))
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    datasets: dict[str, AnyDataset] = {}
    say(pipe, READY)
    while True:
        shared = pipe.recv()
        if stop.number is not None:
            raise RunInterrupted("stopped before it was begun", None, stop.number)
        spec = shared.spec
        if spec.data_fingerprint not in datasets:  # the parent has prepared it: this opens it
            datasets[spec.data_fingerprint] = spec.task.prepare(spec.settings)
        outcome = attempt(shared, runs, datasets[spec.data_fingerprint], world, Reporter(pipe), stop)
        say(pipe, OUTCOME, outcome)
        if outcome.ending is Ending.failed:
            return  # what failed may have left the device or the memory in any state: the next one starts afresh
