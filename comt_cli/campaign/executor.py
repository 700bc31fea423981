"""The executor: trains the runs of a command one after the other in this process (`inline`), several at once in worker
processes (`workers`), or one after the other by a group of processes that share every batch, as torchrun would start
them; and prints the outcome of each. Imports torch only where it trains here."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from comt_cli.campaign.display import make_display
from comt_cli.campaign.processes import plan_workers, signals_blocked, start_server
from comt_cli.campaign.queue import RunQueue, Summary, TrainingFailed, check_not_stopped
from comt_cli.campaign.workers import WorkerPool, exit_text
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.files import check_writable
from comt_cli.runs.plan import BY_ID, RunSpec, with_sources
from comt_cli.streams import mend_streams
from comt_cli.tasks.base import AnyDataset
from comt_cli.training.hardware import check_count, check_device_name, hardware
from comt_cli.training.processes import (
    StopSignal,
    begin_as_worker,
    check_device,
    check_graphs,
    end_process,
    is_main_process,
    rank_and_size,
    share_of_batch,
)
from comt_cli.words import printed_lines

Train = Callable[[RunQueue, str | None], object]
"""Trains a queue on a device in a process of a group."""
START_METHOD: Final = "spawn"
GRACE_SECONDS = 10.0
"""How long the processes of a group may continue after one of them has failed."""
_INTACT = "What was saved before is intact; the same command resumes from there."


def train_on(
    processes: int, specs: Sequence[RunSpec], runs: Path, device: str | None, jobs: int | None = None
) -> Summary:
    """Train those of `specs` that have no result, and print the outcome of them all on standard error. `processes`
    share every run, one per GPU or all on the CPU; or else `jobs` runs are trained at once (None: see `processes`). A
    run that fails stops no other: `Summary.check` raises. Raises `UserError` where nothing can be started, and of
    several processes what the first raised; `RunInterrupted` where a signal left something to do; `StorageError`."""
    _check_options(processes, device, jobs)
    if rank_and_size() and processes not in (1, int(os.environ["WORLD_SIZE"])):
        said = f"--gpus {processes}, but torchrun started {os.environ['WORLD_SIZE']} processes"
        raise UserError(said, "Leave --gpus out.")
    queue = RunQueue(specs, runs)
    try:
        if rank_and_size():
            train_here(queue, device)
        elif queue.open:
            check_writable(runs / BY_ID, "--runs")
            if processes > 1:
                check_training(processes, specs, device, jobs)
                try:
                    train_in_group(processes, specs, runs, device, train_here)
                finally:
                    queue.look_at_open()
            elif jobs == 1 or len(queue.every) == 1:
                train_here(queue, device)
            else:
                _train_in_workers(queue, device, jobs)
    except (RunInterrupted, StorageError):
        _print_outcomes(queue)
        raise
    _print_outcomes(queue)
    return queue.summary()


def check_training(processes: int, specs: Sequence[RunSpec], device: str | None, jobs: int | None) -> None:
    """Raise `UserError`, before anything is moved or started, where `train_on` could not begin: of the device, of
    `processes` and `jobs`, or of a batch or CUDA graphs that cannot be shared."""
    _check_options(processes, device, jobs)
    for spec in with_sources(specs):
        share_of_batch(spec.settings.train.batch_size, processes)
        check_graphs(spec.settings.train.captures, processes)
    if processes > 1:
        check_count(hardware(device), processes)


def _check_options(processes: int, device: str | None, jobs: int | None) -> None:
    check_device(device, processes)
    if jobs not in (None, 1) and processes > 1:
        said = f"--jobs {jobs} with --gpus {processes}: runs on several devices are trained one after the other"
        raise UserError(said, "Leave one of the two out.")
    if jobs not in (None, 1) and rank_and_size():
        raise UserError(f"--jobs {jobs} under torchrun: its processes train one run together", "Leave --jobs out.")
    check_device_name(device)


def train_here(queue: RunQueue, device: str | None, datasets: Mapping[str, AnyDataset] | None = None) -> None:
    """Train the queue in this process, one of torchrun's perhaps, as `inline.train_queue`. `datasets` are its data
    sets, if prepared already. PyTorch is imported for it: that takes seconds, and is announced."""
    with contextlib.closing(make_display(is_main_process())) as display, StopSignal(display.stopping) as stop:
        if "torch" not in sys.modules:
            display.preparing("starting PyTorch", 0, None)
        from comt_cli.campaign.inline import train_queue

        if not rank_and_size():  # whose other processes would wait for this one
            check_not_stopped(stop)
        train_queue(queue, device, display, stop, datasets)


def _train_in_workers(queue: RunQueue, device: str | None, jobs: int | None) -> None:
    """Prepare the data while the server of the workers imports PyTorch; then train in workers, or here for one."""
    with contextlib.closing(make_display()) as display:
        with StopSignal(display.stopping) as stop:
            start_server([shared.spec for shared in queue.every])
            datasets = queue.prepare_data(display.preparing, stop)
            if not queue.open:  # on the data as it is now, all had been trained
                return
            display.preparing("starting PyTorch", 0, None)
            from comt_cli.campaign.inline import check_models

            check_models(queue)
            workers = plan_workers(device, jobs, queue.every)
            check_not_stopped(stop)
        if len(workers.devices) > 1:
            WorkerPool(queue, workers, display).run(stop)
            return
    train_here(queue, workers.devices[0], datasets)


def _print_outcomes(queue: RunQueue) -> None:
    if not is_main_process():
        return
    summary = queue.summary()
    count = len(summary.outcomes)
    lines = summary.lines() if count > 1 else []
    if not queue.open and all(outcome.ended for outcome in summary.outcomes):
        lines = [f"{count} of {count} runs are finished already"]
    for line in lines:
        print("\n".join(printed_lines(line, sys.stderr)), file=sys.stderr, flush=True)


# ---- a group of processes that share every batch of every run


def train_in_group(processes: int, specs: Sequence[RunSpec], runs: Path, device: str | None, train: Train) -> None:
    """Start the processes, each of which calls `train`, and wait for them. Raises the `UserError` of the first that
    raised one, `RunInterrupted` where a signal ended them, and `TrainingFailed` where one died."""
    context = multiprocessing.get_context(START_METHOD)
    port = free_port()
    with signals_blocked():  # a signal to all would end the helper of multiprocessing that a queue starts
        errors = context.SimpleQueue()
    members = [
        context.Process(target=_member, args=(rank, processes, port, list(specs), runs, device, train, errors))
        for rank in range(processes)
    ]
    # A terminal sends Ctrl-C to all processes itself, others signal only this one: they may receive it twice.
    with StopSignal(children=lambda: members) as stop:
        with signals_blocked():
            for member in members:
                member.start()
        failed = join(members)
    if stop.has_killed and sys.stderr.isatty():
        print("\x1b[?25h", end="", file=sys.stderr)  # the cursor, which the killed display had hidden
    if not errors.empty():
        raise errors.get()
    if failed and stop.number is not None:
        raise RunInterrupted("stopped by a signal before all processes could end their step", _INTACT, stop.number)
    if failed:
        how = "; then ".join(f"process {rank} of {processes} {exit_text(members[rank].exitcode)}" for rank in failed)
        raise TrainingFailed(how, f"What it wrote before, if anything, is above. {_INTACT}")


def join(members: Sequence[BaseProcess]) -> list[int]:
    """Wait for all; returns the ranks of those that failed by themselves, in the order in which they did: the others
    die of the first death. Once one has failed they may wait for it for ever: they get a moment, and are then ended."""
    running, failed = list(members), list[int]()
    patience: float | None = None
    while running:
        ended = connection.wait([member.sentinel for member in running], patience)
        for member in [member for member in running if member.sentinel in ended]:
            running.remove(member)
            member.join()
            if member.exitcode:
                patience = GRACE_SECONDS
                failed.append(members.index(member))
        if not ended:
            for member in running:
                member.kill()
                member.join()
            break
    return failed


def _member(
    rank: int, size: int, port: int, specs: list[RunSpec], runs: Path, device: str | None, train: Train, errors: Any
) -> None:
    begin_as_worker()  # before PyTorch is imported, which takes seconds
    signal.pthread_sigmask(signal.SIG_UNBLOCK, StopSignal.SIGNALS)
    mend_streams()
    faulthandler.enable(file=2)  # writes the stack where native code fails
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    status = 0
    try:
        train(RunQueue(specs, runs), device)
    except UserError as error:
        errors.put(error)
        status = error.exit_status
    end_process(status)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
