"""Several runs at once: this process gives them to workers, one at a time to each. A worker that dies is replaced, and
its run counts as failed. If the disk is full, running runs continue and no new one begins. A signal is passed on; every
worker saves after its step. A worker sends through its pipe `READY` when it can train; the `Event`s of its run; a
`RunOutcome` when a run has ended; a `UserError` that ends the process. It ends when the parent closes the pipe."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from comt_cli.campaign.display import Display
from comt_cli.campaign.processes import Workers, context_for, signals_blocked
from comt_cli.campaign.queue import Ending, RunOutcome, RunQueue, TrainingFailed
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.runs.known import SharedRun
from comt_cli.tasks.base import AnyDataset
from comt_cli.training.events import Evaluating, Event, Note, StepReport
from comt_cli.training.processes import StopSignal, begin_as_worker, end_process

READY = "ready"
TICK_SECONDS = 1.0
PATIENCE_SECONDS = 10.0
"""Seconds for a worker to end when there is no more work."""
SAVING_SECONDS = 120.0
"""Seconds for workers to finish and save their step after an error in this process."""
SECONDS_BETWEEN_REPORTS = 0.2
"""A tiny model logs hundreds of steps per second, too many to display."""


@dataclass
class _Worker:
    """A worker process and its run. `leaving`: it is about to end and gets no more runs."""

    number: int
    process: BaseProcess
    pipe: Connection
    ready: bool = False
    leaving: bool = False
    shared: SharedRun | None = None


class WorkerPool:
    """Trains the runs of a queue in worker processes, and records each run's outcome in the queue."""

    def __init__(self, queue: RunQueue, workers: Workers, display: Display) -> None:
        self._queue, self._runs, self._display = queue, queue.runs, display
        self._devices, self._threads, self._device_name = workers.devices, workers.threads, workers.name
        self._size = min(len(workers.devices), len(queue.open))
        self._workers: dict[int, _Worker] = {}
        self._lost: set[int] = set()  # numbers of workers that could not start
        self._refused: StorageError | None = None

    def run(self, earlier: StopSignal | None = None) -> None:
        """Train on prepared data until the queue is empty. A signal that `earlier` has received counts here. Raises
        `RunInterrupted` if a signal left runs to do, `StorageError`, and `TrainingFailed` if no worker can start."""
        with StopSignal(self._display.stopping, self._processes) as stop, self._ending_workers():
            names = worker_names(self._devices[: self._size])
            self._display.queue_started(self._queue, names, self._device_name)
            stop.number = stop.number or (earlier.number if earlier is not None else None)
            self._work_off(stop)
        if self._refused is not None:
            raise self._refused
        if stop.number is not None and (left := len(self._queue.summary().having(Ending.left))):
            status = f"stopped; {left} of {len(self._queue.every)} runs {'is' if left == 1 else 'are'} left to do"
            hint = "Their progress is saved: the same command resumes from there."
            raise RunInterrupted(status, hint, stop.number)

    def _processes(self) -> list[BaseProcess]:
        return [worker.process for worker in self._workers.values()]

    def _work_off(self, stop: StopSignal) -> None:
        while True:
            goes_on = stop.number is None and self._refused is None
            if goes_on:
                for number in range(self._size):
                    self._hand_out(number)
            elif stop.number is not None:
                for worker in self._workers.values():
                    if not worker.ready:  # it has nothing to save, and would react only after its start
                        worker.process.kill()
            here = {worker.pipe: worker for worker in self._workers.values()}
            if not any(worker.leaving or worker.shared is not None for worker in here.values()):
                return
            for pipe in connection.wait(list(here), TICK_SECONDS):
                self._receive(here[pipe], stop)  # type: ignore[index]
            self._display.tick()

    def _hand_out(self, number: int) -> None:
        """Give an idle worker its next run; start the worker if there is none."""
        worker = self._workers.get(number)
        if number in self._lost or (worker is not None and (worker.leaving or worker.shared)):
            return
        shared = self._queue.take()
        if shared is None:
            return
        if worker is None:
            worker = self._workers[number] = self._start(number)
        self._display.run_taken(number, shared.spec)
        worker.shared = shared
        try:
            worker.pipe.send(shared)
        except OSError:  # it died: the end of its pipe is read next
            worker.leaving = True
            self._give_back(worker)

    def _give_back(self, worker: _Worker) -> None:
        """Return the worker's run to the front of the queue."""
        if worker.shared is not None:
            self._queue.give_back(worker.shared)
            self._display.run_ended(worker.number, None)
        worker.shared = None

    def _start(self, number: int) -> _Worker:
        context = context_for(self._devices)
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, self._runs, self._devices[number], self._threads))
        with signals_blocked():
            process.start()
        theirs.close()
        return _Worker(number, process, ours)

    def _receive(self, worker: _Worker, stop: StopSignal) -> None:
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            self._has_died(worker, stop)
            return
        if message == READY:
            worker.ready = True
        elif isinstance(message, RunOutcome):
            self._run_ended(worker, message, leaving=message.ending is Ending.failed)
        elif isinstance(message, UserError):
            self._gives_up(worker, message, stop)
        elif isinstance(message, Event):
            self._display.run_event(worker.number, message)

    def _run_ended(self, worker: _Worker, outcome: RunOutcome, *, leaving: bool = True) -> None:
        worker.shared, worker.leaving = None, leaving
        self._queue.record(outcome)
        self._display.run_ended(worker.number, outcome)

    def _gives_up(self, worker: _Worker, error: UserError, stop: StopSignal) -> None:
        """Handle an error that a worker sent before its end."""
        shared, worker.leaving = worker.shared, True
        if isinstance(error, StorageError):
            self._refused = self._refused or error
        if shared is None:
            return
        if isinstance(error, RunInterrupted) and stop.number is None:
            # Only this worker received a signal. Its run is saved, and another worker resumes it.
            self._give_back(worker)
            self._display.run_event(worker.number, Note(error.message))
        elif isinstance(error, RunInterrupted):
            self._run_ended(worker, RunOutcome.of(shared, self._runs, Ending.left, error.message))
        elif worker.ready:
            self._run_ended(worker, RunOutcome.refused(shared, self._runs, error))
        else:  # the run did not cause it: `_has_died` handles the run
            self._display.run_event(worker.number, Note(error.message))

    def _has_died(self, worker: _Worker, stop: StopSignal) -> None:
        """Handle the end of a worker's process, which was intended (after a failed or stopped run) or not."""
        del self._workers[worker.number]
        _end(worker)
        how, shared = f"its process {exit_text(worker.process.exitcode)}", worker.shared
        if shared is None:
            return
        if worker.ready and stop.number is None:
            shared.directory(self._runs).note_error(how)
            self._run_ended(worker, RunOutcome.of(shared, self._runs, Ending.failed, how))
        elif worker.ready:
            reason = "its process was ended during a step; it resumes from its last checkpoint"
            self._run_ended(worker, RunOutcome.of(shared, self._runs, Ending.left, reason))
        else:
            self._give_back(worker)
            if stop.number is not None:
                return
            self._display.run_event(worker.number, Note(f"a worker ended before it could train: {how}"))
            self._lost.add(worker.number)
            if len(self._lost) == self._size:
                wrong = f"no worker can be started for {self._devices[worker.number]}: {how}"
                raise TrainingFailed(wrong, "Its output is above. --jobs 1 trains without workers.")

    @contextlib.contextmanager
    def _ending_workers(self) -> Iterator[None]:
        """End all workers at exit. After success they are idle and end by themselves."""
        try:
            yield
        except BaseException:
            for worker in self._workers.values():
                if worker.shared is None:
                    worker.pipe.close()  # it waits for work, and ends
            # The others save after their step.
            for process in self._processes():
                process.terminate()
            deadline = time.monotonic() + SAVING_SECONDS
            for process in self._processes():
                process.join(max(0.0, deadline - time.monotonic()))
                process.kill()
            raise
        finally:
            for worker in self._workers.values():
                worker.pipe.close()
            for worker in self._workers.values():
                _end(worker)


def _end(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.join(PATIENCE_SECONDS)
    worker.process.kill()
    worker.process.join()


def exit_text(exitcode: int | None) -> str:
    """The end of a process in words, from its exit code in `multiprocessing`."""
    if exitcode is None or exitcode >= 0:
        return f"ended with status {exitcode}"
    name = next((each.name for each in signal.Signals if each == -exitcode), f"signal {-exitcode}")
    hint = " (perhaps out of memory)" if -exitcode == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def worker_names(devices: Sequence[str]) -> list[str]:
    """Names of workers: `cuda:0` for the only worker of a device; `cpu 1`, `cpu 2` for several."""
    before = [devices[: place + 1].count(device) for place, device in enumerate(devices)]
    return [each if devices.count(each) == 1 else f"{each} {n}" for each, n in zip(devices, before, strict=True)]


# ---- in the worker


def work(pipe: Connection, runs: Path, device: str, threads: int | None) -> None:
    """The worker's process. It starts with all signals of `StopSignal` blocked, so that none is lost."""
    begin_as_worker()
    with StopSignal() as stop:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, StopSignal.SIGNALS)
        try:
            _train_all(pipe, runs, device, threads, stop)
        except UserError as error:
            _send(pipe, error)
        except EOFError:  # no more work
            pass
    end_process(0)  # everything is sent and saved; a normal exit with torch can take seconds


def _train_all(pipe: Connection, runs: Path, device: str, threads: int | None, stop: StopSignal) -> None:
    import torch

    from comt_cli.campaign.inline import guarded_run
    from comt_cli.training.devices import pick_device
    from comt_cli.training.parallel import World

    if threads is not None:
        torch.set_num_threads(threads)
    world = World(pick_device(device))
    if world.device.type == "cuda":
        torch.cuda.set_device(world.device)
    datasets: dict[str, AnyDataset] = {}
    _send(pipe, READY)
    while True:
        shared = pipe.recv()
        if stop.number is not None:
            raise RunInterrupted("stopped before it began", None, stop.number)
        spec = shared.spec
        if spec.data_fingerprint not in datasets:  # the parent has prepared it: this opens it
            datasets[spec.data_fingerprint] = spec.task.prepare(spec.settings)
        sent = 0.0

        def report(event: Event, steps: int = spec.settings.train.steps) -> None:
            """Send an event; only a few per second for steps and evaluated batches."""
            nonlocal sent
            if (isinstance(event, StepReport) and event.step < steps) or (isinstance(event, Evaluating) and event.done):
                if time.monotonic() - sent < SECONDS_BETWEEN_REPORTS:
                    return
                sent = time.monotonic()
            _send(pipe, event)

        outcome = guarded_run(shared, runs, datasets[spec.data_fingerprint], world, report, stop)
        _send(pipe, outcome)
        if outcome.ending is Ending.failed:
            return  # the failure may have left device or memory in any state: the next run gets a new process


def _send(pipe: Connection, message: object) -> None:
    """Send a message. End the process if the parent is gone, so that the run does not stay locked."""
    try:
        pipe.send(message)
    except OSError:
        os._exit(1)
