"""How a command trains its runs: in this process, in workers with a run each, or in processes that share every run.

Imports torch only where something is left to train.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from comt_cli.campaign.endings import StandardError, endings, redirect_standard_error
from comt_cli.campaign.jobs import check_jobs, check_memory
from comt_cli.campaign.outcomes import Summary, TrainingFailed, check_not_stopped
from comt_cli.campaign.plain_display import make_display
from comt_cli.campaign.queue import RunQueue
from comt_cli.campaign.server import signals_blocked
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.files import check_writable
from comt_cli.runs.plan import BY_ID, RunSpec, with_sources
from comt_cli.streams import mend_streams
from comt_cli.training.hardware import check_count, check_device_name, hardware
from comt_cli.training.processes import (
    PassedOnSignal,
    StopSignal,
    begin_as_worker,
    check_device,
    check_graphs,
    check_share,
    end_process,
    is_main_process,
    launched_by_torchrun,
)
from comt_cli.words import printed_lines

if TYPE_CHECKING:
    from comt_cli.tasks.base import AnyDataset

START_METHOD: Final = "spawn"
GRACE_SECONDS = 10.0
"""How long processes may continue after one of them has failed."""


def train_on(
    processes: int, specs: Sequence[RunSpec], runs: Path, device: str | None, jobs: int | None = None
) -> Summary:
    """Train those of `specs` that have no result, and print the outcome of them all on standard error.

    `processes` share every run, one per GPU or all on the CPU; or else `jobs` runs are trained at once, each in a
    process (None: see `jobs`). Runs that fail, or that other processes and machines are training, do not keep the
    rest from being trained, and raise nothing: `Summary.check` does.

    Raises:
        UserError: nothing was started: the data cannot be prepared, there is no such device, `processes` and `jobs`
            do not go together. With several processes also what the first of them raised; its exit status is kept.
        RunInterrupted: a signal came, and something is left to do.
        StorageError: the disk refused; what was saved before is intact.
    """
    check_device(device, processes)
    check_jobs(jobs, processes)
    check_device_name(device)
    if launched_by_torchrun() and processes not in (1, int(os.environ["WORLD_SIZE"])):
        raise UserError(
            f"--gpus {processes}, but torchrun started {os.environ['WORLD_SIZE']} processes", "Leave --gpus out."
        )
    queue = RunQueue(specs, runs)
    if launched_by_torchrun():
        with _summary_at_the_end(queue):
            return _train_here(queue, device)
    if not queue.open:
        _print_summary(queue)
        return queue.summary()
    check_writable(runs / BY_ID, "--runs")
    with _summary_at_the_end(queue):
        if processes > 1:
            check_training(processes, specs, device, jobs)
            try:
                _train_together(processes, specs, runs, device)
            finally:
                queue.data_prepared(_prepared_contents(queue))
                queue.look_at_open()
        elif jobs == 1 or len(queue.every) == 1:
            _train_here(queue, device)
        else:
            _train_in_workers(queue, runs, device, jobs)
    return queue.summary()


def check_training(processes: int, specs: Sequence[RunSpec], device: str | None, jobs: int | None) -> None:
    """Find out, before anything is moved or started, that `train_on` could not begin.

    Raises:
        UserError: there is no such device, `processes` and `jobs` do not go together, a batch cannot be shared, CUDA
            graphs cannot either, or the memory does not hold so many processes.
    """
    check_device(device, processes)
    check_jobs(jobs, processes)
    check_device_name(device)
    specs = with_sources(specs)
    for spec in specs:
        check_share(spec.settings.train.batch_size, processes)
        check_graphs(spec.settings.train.captures, processes)
    if jobs is not None:
        check_memory("--jobs", min(jobs, len({spec.id for spec in specs})))
    if processes > 1:
        check_memory("--gpus", processes)
        check_count(hardware(device), processes)


def _prepared_contents(queue: RunQueue) -> dict[str, str]:
    """By fingerprint, the content of the open runs' data as it is prepared here.

    Data that is not what was planned any more is left out, and what cannot be read: the error that ended the training
    must be reported, not that.
    """
    asked = {shared.spec.data_fingerprint: shared.spec for shared in queue.open}
    contents = {}
    for planned, spec in asked.items():
        with contextlib.suppress(UserError):
            fingerprint, content = spec.task.identify(spec.settings)
            if fingerprint == planned and content is not None:
                contents[fingerprint] = content
    return contents


def _train_here(queue: RunQueue, device: str | None, datasets: Mapping[str, AnyDataset] | None = None) -> Summary:
    """Train the queue in this process, which imports PyTorch for it: that takes seconds, and is announced."""
    display = make_display(is_main_process())
    try:
        with StopSignal(display.stopping) as stop:
            if "torch" not in sys.modules:
                display.preparing("starting PyTorch", 0, None)
            from comt_cli.campaign.table import train_queue

            if not launched_by_torchrun():  # whose other processes would wait for this one
                check_not_stopped(stop)
            return train_queue(queue, device, display, stop, datasets)
    finally:
        display.close()


def _train_in_workers(queue: RunQueue, runs: Path, device: str | None, jobs: int | None) -> None:
    """Prepare the data while a scout imports PyTorch and compiles kernels; then train in the workers it planned."""
    from comt_cli.campaign.dispatch import Dispatcher
    from comt_cli.campaign.preparing import prepare_all
    from comt_cli.campaign.scout import scouting

    display = make_display()
    try:
        with scouting(device, jobs, queue.every, runs) as scout:
            with StopSignal(display.stopping) as stop:
                datasets = prepare_all(queue, display.preparing, stop)
                if not queue.open:  # on the data as it is now, all had been trained
                    return
                display.preparing("starting PyTorch", 0, None)
                workers = scout.workers(stop)
            if len(workers.devices) > 1:
                Dispatcher(queue, runs, workers, display).run(stop)
                return
    finally:
        display.close()
    _train_here(queue, workers.devices[0], datasets)


@contextlib.contextmanager
def _summary_at_the_end(queue: RunQueue) -> Iterator[None]:
    """Print the outcome of every run at the end: also where the disk refused, or a signal came."""
    try:
        yield
    except (RunInterrupted, StorageError):
        _print_summary(queue)
        raise
    _print_summary(queue)


def _print_summary(queue: RunQueue) -> None:
    outcomes = queue.summary().outcomes
    if not is_main_process():
        return
    if not queue.open and all(outcome.ended for outcome in outcomes):
        lines = [f"{len(outcomes)} of {len(outcomes)} runs are finished already"]
    else:
        lines = queue.summary().lines() if len(outcomes) > 1 else []
    for line in lines:
        print("\n".join(printed_lines(line, sys.stderr)), file=sys.stderr, flush=True)


def _train_together(processes: int, specs: Sequence[RunSpec], runs: Path, device: str | None) -> None:
    """Start processes that share every run, as torchrun would, and wait for them."""
    context = multiprocessing.get_context(START_METHOD)
    port = _free_port()
    errors = context.SimpleQueue()
    # The first has the display, which needs the terminal itself; of the others only what goes wrong is seen.
    pipes = [None, *(context.Pipe(duplex=False) for _ in range(processes - 1))]
    workers = [
        context.Process(
            target=_worker, args=(rank, processes, port, list(specs), runs, device, errors, pipe and pipe[1])
        )
        for rank, pipe in enumerate(pipes)
    ]
    outputs: dict[int, StandardError] = {}
    # A terminal sends Ctrl-C to all processes itself, others signal only this one: workers may receive it twice.
    with PassedOnSignal(lambda: workers) as stop:
        with signals_blocked():
            for rank, (worker, pipe) in enumerate(zip(workers, pipes, strict=True)):
                worker.start()
                if pipe is not None:
                    pipe[1].close()  # the process has its own; with ours it would never end
                    outputs[rank] = StandardError(pipe[0])
        failed = _join(workers)
    if stop.has_killed and sys.stderr.isatty():
        print("\x1b[?25h", end="", file=sys.stderr)  # the cursor, which the killed display had hidden
    if not errors.empty():
        raise errors.get()
    if failed and stop.number is not None:
        raise RunInterrupted(
            "stopped by a signal before all processes could end their step",
            "What was saved before is intact; the same command resumes from there.",
            stop.number,
        )
    if failed:
        lines = outputs[failed[0]].last_lines() if failed[0] in outputs else []
        raise TrainingFailed(
            endings([worker.exitcode for worker in workers], failed),
            "\n  ".join(
                [
                    "What was saved before is intact; the same command resumes from there.",
                    *([f"The last that process {failed[0]} said:", *(f"| {line}" for line in lines)] if lines else []),
                ]
            ),
        )


def _join(workers: Sequence[BaseProcess]) -> list[int]:
    """Wait for all. Once one has failed the others may wait for it for ever: they get a moment, and are then ended.

    Returns the ranks of those that failed by themselves, in the order in which they did.
    """
    running = list(workers)
    failed: list[int] = []
    ended_by_us: list[BaseProcess] = []
    patience: float | None = None
    while running:
        ended = connection.wait([worker.sentinel for worker in running], patience)
        for worker in [worker for worker in running if worker.sentinel in ended]:
            running.remove(worker)
            worker.join()
            if worker.exitcode:
                patience = GRACE_SECONDS
                if worker not in ended_by_us:
                    failed.append(workers.index(worker))
        if not ended:
            for worker in running:
                worker.kill()
            ended_by_us = list(running)
    return failed


def _worker(
    rank: int,
    size: int,
    port: int,
    specs: list[RunSpec],
    runs: Path,
    device: str | None,
    errors: Any,
    writer: Connection | None = None,
) -> None:
    begin_as_worker()  # before PyTorch is imported, which takes seconds
    signal.pthread_sigmask(signal.SIG_UNBLOCK, StopSignal.SIGNALS)
    mend_streams()
    redirect_standard_error(writer)
    from comt_cli.campaign import table

    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    status = 0
    try:
        table.train_table(specs, runs, device)
    except UserError as error:
        errors.put(error)
        status = error.exit_status
    end_process(status)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
