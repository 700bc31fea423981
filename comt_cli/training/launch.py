"""`--gpus N`: start N processes of a table's training on this machine, as torchrun would."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, Final

from torch import multiprocessing

from comt_cli.errors import RunInterrupted, UserError
from comt_cli.recipe.plan import RunSpec
from comt_cli.training.distribution import check_device, launched_by_torchrun
from comt_cli.training.signals import StopSignal
from comt_cli.training.table import TrainingFailed, train_table

START_METHOD: Final = "spawn"
GRACE_SECONDS = 10.0
"""How long processes may go on after one of them has failed."""


def train_on(processes: int, specs: Sequence[RunSpec], runs: Path, device: str | None) -> None:
    """Train `specs` with `processes` processes, one per GPU, or sharing the CPU.

    Raises:
        UserError: what the first of the processes raised; its exit status is kept.
    """
    check_device(device, processes)
    if processes == 1 or launched_by_torchrun():
        if launched_by_torchrun() and processes not in (1, int(os.environ["WORLD_SIZE"])):
            raise UserError(
                f"--gpus {processes}, but torchrun started {os.environ['WORLD_SIZE']} processes", "Leave --gpus out."
            )
        train_table(specs, runs, device)
        return
    context = multiprocessing.get_context(START_METHOD)
    port = _free_port()
    errors = context.SimpleQueue()
    workers = [
        context.Process(target=_worker, args=(rank, processes, port, list(specs), runs, device, errors))
        for rank in range(processes)
    ]
    for worker in workers:
        worker.start()

    heard: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        heard.append(number)
        for worker in workers:
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, number)

    # A terminal sends Ctrl-C to all processes itself, others signal only this one: workers bear hearing it twice.
    before = {number: signal.signal(number, forward) for number in StopSignal.SIGNALS}
    try:
        _join(workers)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not errors.empty():
        raise errors.get()
    failed = [rank for rank, worker in enumerate(workers) if worker.exitcode]
    if failed and heard:
        raise RunInterrupted(
            "stopped by a signal before all processes could end their step",
            "What was saved before is intact; the same command goes on from there.",
            heard[0],
        )
    if failed:
        raise TrainingFailed(
            f"process {failed[0]} of {processes} ended with status {workers[failed[0]].exitcode}",
            "What was saved before is intact; the same command goes on from there.",
        )


def _join(workers: Sequence[BaseProcess]) -> None:
    """Wait for all. Once one has failed the others may wait for it for ever: they get a moment, and are then ended."""
    running = list(workers)
    patience: float | None = None
    while running:
        ended = connection.wait([worker.sentinel for worker in running], patience)
        for worker in [worker for worker in running if worker.sentinel in ended]:
            running.remove(worker)
            worker.join()
            if worker.exitcode:
                patience = GRACE_SECONDS
        if not ended:
            for worker in running:
                worker.kill()


def _worker(
    rank: int,
    size: int,
    port: int,
    specs: list[RunSpec],
    runs: Path,
    device: str | None,
    errors: Any,
) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    _die_with_parent()
    try:
        train_table(specs, runs, device)
    except UserError as error:
        errors.put(error)
        raise SystemExit(error.exit_status) from None


def _die_with_parent() -> None:
    """Linux: have the system end this process when the launcher is killed; an orphan would keep the run locked."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    launcher = multiprocessing.parent_process()
    if launcher is not None and not launcher.is_alive():  # it was killed before
        os._exit(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
