"""The executor: trains the runs of a command in one of three ways and prints the outcome of each.

Runs are trained one after the other in this process (`inline`), several at once in worker processes (`workers`), or one
after the other by a group of processes that share every batch (`group`). Imports torch only where it trains here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from comt_cli.campaign.display import make_display
from comt_cli.campaign.group import train_in_group
from comt_cli.campaign.jobs import check_jobs, check_memory
from comt_cli.campaign.outcomes import Summary, check_not_stopped
from comt_cli.campaign.queue import RunQueue
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.files import check_writable
from comt_cli.runs.plan import BY_ID, RunSpec, with_sources
from comt_cli.training.hardware import check_count, check_device_name, hardware
from comt_cli.training.processes import (
    StopSignal,
    check_device,
    check_graphs,
    check_share,
    is_main_process,
    launched_by_torchrun,
)
from comt_cli.words import printed_lines

if TYPE_CHECKING:
    from comt_cli.tasks.base import AnyDataset


def train_on(
    processes: int, specs: Sequence[RunSpec], runs: Path, device: str | None, jobs: int | None = None
) -> Summary:
    """Train those of `specs` that have no result, and print the outcome of them all on standard error. `processes`
    share every run, one per GPU or all on the CPU; or else `jobs` runs are trained at once, each in a process (None:
    see `jobs`). A run that fails, or that others are training, keeps no other from being trained, and raises nothing:
    `Summary.check` does. Raises `UserError` where nothing can be started, and with several processes what the first of
    them raised; `RunInterrupted` where a signal left something to do; `StorageError` where the disk refused."""
    _check_options(processes, device, jobs)
    if launched_by_torchrun() and processes not in (1, int(os.environ["WORLD_SIZE"])):
        raise UserError(
            f"--gpus {processes}, but torchrun started {os.environ['WORLD_SIZE']} processes", "Leave --gpus out."
        )
    queue = RunQueue(specs, runs)
    with _outcomes_printed(queue):
        if launched_by_torchrun():
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
    return queue.summary()


def check_training(processes: int, specs: Sequence[RunSpec], device: str | None, jobs: int | None) -> None:
    """Raise `UserError`, before anything is moved or started, where `train_on` could not begin: of the device, of
    `processes` and `jobs`, of a batch or CUDA graphs that cannot be shared, or of the memory."""
    _check_options(processes, device, jobs)
    specs = with_sources(specs)
    for spec in specs:
        check_share(spec.settings.train.batch_size, processes)
        check_graphs(spec.settings.train.captures, processes)
    if jobs is not None:
        check_memory("--jobs", min(jobs, len({spec.id for spec in specs})))
    if processes > 1:
        check_memory("--gpus", processes)
        check_count(hardware(device), processes)


def _check_options(processes: int, device: str | None, jobs: int | None) -> None:
    check_device(device, processes)
    check_jobs(jobs, processes)
    check_device_name(device)


def train_here(queue: RunQueue, device: str | None, datasets: Mapping[str, AnyDataset] | None = None) -> Summary:
    """Train the queue in this process, one of torchrun's perhaps, as `inline.train_queue`. `datasets` are its data
    sets, if prepared already. PyTorch is imported for it: that takes seconds, and is announced."""
    with (
        contextlib.closing(make_display(is_main_process())) as display,
        StopSignal(display.stopping) as stop,
    ):
        if "torch" not in sys.modules:
            display.preparing("starting PyTorch", 0, None)
        from comt_cli.campaign.inline import train_queue

        if not launched_by_torchrun():  # whose other processes would wait for this one
            check_not_stopped(stop)
        return train_queue(queue, device, display, stop, datasets)


def _train_in_workers(queue: RunQueue, device: str | None, jobs: int | None) -> None:
    """Prepare the data while the device probe imports PyTorch; then train in the workers that it found room for, or
    here where that is one."""
    from comt_cli.campaign.server import device_probe
    from comt_cli.campaign.workers import WorkerPool

    with (
        contextlib.closing(make_display()) as display,
        device_probe(device, jobs, queue.every, queue.runs) as probe,
    ):
        with StopSignal(display.stopping) as stop:
            datasets = queue.prepare_data(display.preparing, stop)
            if not queue.open:  # on the data as it is now, all had been trained
                return
            display.preparing("starting PyTorch", 0, None)
            workers = probe.workers(stop)
        if len(workers.devices) > 1:
            WorkerPool(queue, workers, display).run(stop)
            return
    train_here(queue, workers.devices[0], datasets)


@contextlib.contextmanager
def _outcomes_printed(queue: RunQueue) -> Iterator[None]:
    """Print the outcome of every run at the end: also where the disk refused, or a signal came."""
    try:
        yield
    except (RunInterrupted, StorageError):
        _print_outcomes(queue)
        raise
    _print_outcomes(queue)


def _print_outcomes(queue: RunQueue) -> None:
    if not is_main_process():
        return
    summary = queue.summary()
    count = len(summary.outcomes)
    if not queue.open and all(outcome.ended for outcome in summary.outcomes):
        lines = [f"{count} of {count} runs are finished already"]
    else:
        lines = summary.lines() if count > 1 else []
    for line in lines:
        print("\n".join(printed_lines(line, sys.stderr)), file=sys.stderr, flush=True)
