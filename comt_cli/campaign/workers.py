"""Several runs at once: this process hands them to workers, one at a time to each. A worker that dies is replaced, and
its run counts as failed. A full disk stops the queue: what runs continues, nothing new is begun. A signal is passed on;
every worker saves after its step. A worker sends through its pipe: `READY` once it can train; the `Event`s of its run;
a `RunOutcome` when a run has ended; a `UserError` that ends the process. It ends when the parent closes the pipe."""

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
"""How long a worker may take to end once there is no more work."""
SAVING_SECONDS = 120.0
"""How long workers may take to end their step and save it after an error in this process."""
SECONDS_BETWEEN_REPORTS = 0.2
"""A tiny model logs hundreds of steps a second; nobody reads that fast."""


@dataclass
class _Worker:
    """A process in its place, and the run that it has. `leaving`: it is about to end, and gets no more."""

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
        self._lost: set[int] = set()  # places whose worker could not even start
        self._refused: StorageError | None = None

    def run(self, earlier: StopSignal | None = None) -> None:
        """Train, on prepared data, until nothing can be taken; a signal that `earlier` has received counts here. Raises
        `RunInterrupted` where a signal left something to do, `StorageError`, and `TrainingFailed` without a worker."""
        with StopSignal(self._display.stopping, self._processes) as stop, self._ending_workers():
            names = worker_names(self._devices[: self._size])
            self._display.queue_started(self._queue, names, self._device_name)
            stop.number = stop.number or (earlier.number if earlier is not None else None)
            self._work_off(stop)
        if self._refused is not None:
            raise self._refused
        if stop.number is not None and (left := len(self._queue.summary().having(Ending.left))):
            said = f"stopped; {left} of {len(self._queue.every)} runs {'is' if left == 1 else 'are'} left to do"
            hint = "What they had begun is saved: the same command resumes from there."
            raise RunInterrupted(said, hint, stop.number)

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
                    if not worker.ready:  # it has nothing to save, and would react only once it has started
                        worker.process.kill()
            here = {worker.pipe: worker for worker in self._workers.values()}
            if not any(worker.leaving or worker.shared is not None for worker in here.values()):
                return
            for pipe in connection.wait(list(here), TICK_SECONDS):
                self._receive(here[pipe], stop)  # type: ignore[index]
            self._display.tick()

    def _hand_out(self, number: int) -> None:
        """Give a worker that has nothing to do its next run; where there is no worker, start one for it."""
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
        except OSError:  # it died: the end of its pipe is received next
            worker.leaving = True
            self._give_back(worker)

    def _give_back(self, worker: _Worker) -> None:
        """The worker's run is the next one again."""
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
        """A worker has sent the error with which it ends."""
        shared, worker.leaving = worker.shared, True
        if isinstance(error, StorageError):
            self._refused = self._refused or error
        if shared is None:
            return
        if isinstance(error, RunInterrupted) and stop.number is None:
            # Someone signalled this worker alone. Its run is saved, and another worker resumes it.
            self._give_back(worker)
            self._display.run_event(worker.number, Note(error.message))
        elif isinstance(error, RunInterrupted):
            self._run_ended(worker, RunOutcome.of(shared, self._runs, Ending.left, error.message))
        elif worker.ready:
            self._run_ended(worker, RunOutcome.refused(shared, self._runs, error))
        else:  # not the run's fault: `_has_died` does the rest
            self._display.run_event(worker.number, Note(error.message))

    def _has_died(self, worker: _Worker, stop: StopSignal) -> None:
        """A worker's process has ended: as intended, after a run that failed or was stopped; or by itself."""
        del self._workers[worker.number]
        _end(worker)
        how, shared = f"its process {exit_text(worker.process.exitcode)}", worker.shared
        if shared is None:
            return
        if worker.ready and stop.number is None:
            shared.directory(self._runs).note_error(how)
            self._run_ended(worker, RunOutcome.of(shared, self._runs, Ending.failed, how))
        elif worker.ready:
            reason = "its process was ended before its step was; it resumes from its last checkpoint"
            self._run_ended(worker, RunOutcome.of(shared, self._runs, Ending.left, reason))
        else:
            self._give_back(worker)
            if stop.number is not None:
                return
            self._display.run_event(worker.number, Note(f"a worker ended before it could train: {how}"))
            self._lost.add(worker.number)
            if len(self._lost) == self._size:
                said = f"no worker can be started for {self._devices[worker.number]}: {how}"
                raise TrainingFailed(said, "Its output is above. --jobs 1 trains without workers.")

    @contextlib.contextmanager
    def _ending_workers(self) -> Iterator[None]:
        """Let no worker outlive this: when all went well they have nothing to do, and end by themselves."""
        try:
            yield
        except BaseException:
            for worker in self._workers.values():
                if worker.shared is None:
                    worker.pipe.close()  # it waits for work, and ends since there is no more
            # The others save after their step: what they have computed was paid for.
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
    """The end of a process in words, by the exit code that `multiprocessing` has of it."""
    if exitcode is None or exitcode >= 0:
        return f"ended with status {exitcode}"
    name = next((each.name for each in signal.Signals if each == -exitcode), f"signal {-exitcode}")
    hint = ", as the system does where memory runs out" if -exitcode == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def worker_names(devices: Sequence[str]) -> list[str]:
    """`cuda:0` where a worker is alone on its device; `cpu 1`, `cpu 2` where there are several."""
    before = [devices[: place + 1].count(device) for place, device in enumerate(devices)]
    return [each if devices.count(each) == 1 else f"{each} {n}" for each, n in zip(devices, before, strict=True)]


# ---- in the worker


def work(pipe: Connection, runs: Path, device: str, threads: int | None) -> None:
    """The worker's process, which is started with all signals of `StopSignal` blocked, so that none is lost."""
    begin_as_worker()
    with StopSignal() as stop:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, StopSignal.SIGNALS)
        try:
            _train_all(pipe, runs, device, threads, stop)
        except UserError as error:
            _send(pipe, error)
        except EOFError:  # no more work
            pass
    end_process(0)  # all is sent and saved; taking the interpreter down with torch in it can take seconds


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
            raise RunInterrupted("stopped before it was begun", None, stop.number)
        spec = shared.spec
        if spec.data_fingerprint not in datasets:  # the parent has prepared it: this opens it
            datasets[spec.data_fingerprint] = spec.task.prepare(spec.settings)
        sent = 0.0

        def report(event: Event, steps: int = spec.settings.train.steps) -> None:
            """Send the event; of steps and evaluated batches a few in a second."""
            nonlocal sent
            if (isinstance(event, StepReport) and event.step < steps) or (isinstance(event, Evaluating) and event.done):
                if time.monotonic() - sent < SECONDS_BETWEEN_REPORTS:
                    return
                sent = time.monotonic()
            _send(pipe, event)

        outcome = guarded_run(shared, runs, datasets[spec.data_fingerprint], world, report, stop)
        _send(pipe, outcome)
        if outcome.ending is Ending.failed:
            return  # what failed may have left the device or the memory in any state: the next one starts afresh


def _send(pipe: Connection, message: object) -> None:
    """Send a message; end the process if nobody receives it: it would keep its run locked."""
    try:
        pipe.send(message)
    except OSError:
        os._exit(1)
