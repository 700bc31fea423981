"""The executor: trains the runs of a command and prints their outcomes. Runs are trained one after another in this
process (`inline`), several at once in worker processes (`workers`), or one after another by a group of processes that
share every batch, as under torchrun. Imports torch only to train in this process."""

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
from comt_cli.errors import ProcessLost, RunInterrupted, StorageError, UserError
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
"""Seconds for which the processes of a group may continue after one has failed."""
_INTACT = "What was saved before is intact; the same command resumes from there."


def train_on(
    processes: int, specs: Sequence[RunSpec], runs: Path, device: str | None, jobs: int | None = None
) -> Summary:
    """Train those of `specs` that have no result, and print all outcomes on standard error. Either `processes` share
    every run, one per GPU or all on the CPU, or `jobs` runs are trained at once (None: see the module `processes`). A
    failed run does not stop the others (`Summary.check` raises for it). Raises `UserError` if nothing can be started,
    or the first error of several processes; `RunInterrupted` if a signal left runs to do; `StorageError`."""
    _check_options(processes, device, jobs)
    if rank_and_size() and processes not in (1, int(os.environ["WORLD_SIZE"])):
        wrong = f"--gpus {processes} was given, but torchrun started {os.environ['WORLD_SIZE']} processes"
        raise UserError(wrong, "Leave --gpus out.")
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


def check_training(
    processes: int, specs: Sequence[RunSpec], device: str | None, jobs: int | None, *, here: bool = True
) -> None:
    """Raise `UserError`, before anything is moved or started, if `train_on` could not begin because of the device (that
    of this machine, if it is `here`), `processes`, `jobs`, a batch that cannot be divided, or CUDA graphs."""
    _check_options(processes, device, jobs, here=here)
    for spec in with_sources(specs):
        share_of_batch(spec.settings.train.batch_size, processes)
        check_graphs(spec.settings.train.captures, processes)
    if here and processes > 1:
        check_count(hardware(device), processes)


def _check_options(processes: int, device: str | None, jobs: int | None, *, here: bool = True) -> None:
    check_device(device, processes)
    if jobs not in (None, 1) and processes > 1:
        wrong = f"--jobs {jobs} and --gpus {processes} cannot be combined: runs on several devices are trained in turn"
        raise UserError(wrong, "Leave one of the two out.")
    if jobs not in (None, 1) and rank_and_size():
        raise UserError(f"--jobs {jobs} cannot be used under torchrun, which trains runs in turn", "Leave --jobs out.")
    if here:
        check_device_name(device)


def train_here(queue: RunQueue, device: str | None, datasets: Mapping[str, AnyDataset] | None = None) -> None:
    """Train the queue in this process, perhaps one of torchrun's, as `inline.train_queue`. `datasets` are its data sets
    if they are prepared already. The import of PyTorch, which takes seconds, is announced."""
    with contextlib.closing(make_display(is_main_process())) as display, StopSignal(display.stopping) as stop:
        if "torch" not in sys.modules:
            display.preparing("starting PyTorch", 0, None)
        from comt_cli.campaign.inline import train_queue

        if not rank_and_size():  # else the other processes would wait for this one
            check_not_stopped(stop)
        train_queue(queue, device, display, stop, datasets)


def _train_in_workers(queue: RunQueue, device: str | None, jobs: int | None) -> None:
    """Prepare the data while the workers' server imports PyTorch. Then train in workers, or here if one is enough."""
    with contextlib.closing(make_display()) as display:
        with StopSignal(display.stopping) as stop:
            start_server([shared.spec for shared in queue.every])
            datasets = queue.prepare_data(display.preparing, stop)
            if not queue.open:  # all runs on the present data are trained already
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
        lines = [f"{count} of {count} runs were finished before: nothing to train"]
    for line in lines:
        print("\n".join(printed_lines(line, sys.stderr)), file=sys.stderr, flush=True)


# ---- a group of processes that share every batch of every run


def train_in_group(processes: int, specs: Sequence[RunSpec], runs: Path, device: str | None, train: Train) -> None:
    """Start processes that call `train`, and wait for them. Raises the first `UserError` of a process, `RunInterrupted`
    if a signal ended them, or `TrainingFailed` if one died."""
    context = multiprocessing.get_context(START_METHOD)
    port = free_port()
    with signals_blocked():  # the queue starts a helper of multiprocessing, which no signal may end
        errors = context.SimpleQueue()
    members = [
        context.Process(target=_member, args=(rank, processes, port, list(specs), runs, device, train, errors))
        for rank in range(processes)
    ]
    # A terminal sends Ctrl-C to all processes, other senders signal only this one: members may receive it twice.
    with StopSignal(children=lambda: members) as stop:
        with signals_blocked():
            for member in members:
                member.start()
        failed = join(members)
    if stop.has_killed and sys.stderr.isatty():
        print("\x1b[?25h", end="", file=sys.stderr)  # show the cursor, which the killed display had hidden
    if not errors.empty():
        raise errors.get()
    if failed and stop.number is not None:
        raise RunInterrupted("stopped by a signal before all processes had finished the step", _INTACT, stop.number)
    if failed:
        how = "; then ".join(f"process {rank} of {processes} {exit_text(members[rank].exitcode)}" for rank in failed)
        raise TrainingFailed(how, f"Its output, if any, is above. {_INTACT}")


def join(members: Sequence[BaseProcess]) -> list[int]:
    """Wait for all processes. After the first failure the others may wait for it for ever, so they are killed after
    `GRACE_SECONDS`. Returns the ranks of the processes that failed by themselves, in order."""
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
        if isinstance(error, ProcessLost):  # printed, since another one's end may be the reason
            print("\n".join(printed_lines(f"comt: {error}", sys.stderr)), file=sys.stderr)
        else:
            errors.put(error)
        status = error.exit_status
    end_process(status)


def free_port() -> int:
    """A free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
