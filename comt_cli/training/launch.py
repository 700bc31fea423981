"""`--gpus N`: start N processes of a table's training on this machine, as torchrun would."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from torch import multiprocessing

from comt_cli.errors import UserError
from comt_cli.recipe.plan import RunSpec
from comt_cli.training.distribution import launched_by_torchrun
from comt_cli.training.table import train_table

GRACE_SECONDS = 10.0
"""How long processes may go on after one of them has failed."""


def train_on(processes: int, specs: Sequence[RunSpec], runs: Path, device: str | None) -> None:
    """Train `specs` with `processes` processes, one per GPU, or sharing the CPU.

    Raises:
        UserError: what the first of the processes raised; its exit status is kept.
    """
    if processes == 1 or launched_by_torchrun():
        if launched_by_torchrun() and processes not in (1, int(os.environ["WORLD_SIZE"])):
            raise UserError(
                f"--gpus {processes}, but torchrun started {os.environ['WORLD_SIZE']} processes", "Leave --gpus out."
            )
        train_table(specs, runs, device)
        return
    context = multiprocessing.get_context("spawn")
    port = _free_port()
    errors = context.SimpleQueue()
    workers = [
        context.Process(target=_worker, args=(rank, processes, port, list(specs), runs, device, errors))
        for rank in range(processes)
    ]
    for worker in workers:
        worker.start()

    def forward(number: int, _: FrameType | None) -> None:
        for worker in workers:
            if worker.pid is not None and worker.is_alive():
                os.kill(worker.pid, number)

    # A terminal sends Ctrl-C to all processes itself; SIGTERM reaches only this one.
    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, forward),
        signal.SIGINT: signal.signal(signal.SIGINT, _wait),
    }
    try:
        _join(workers)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not errors.empty():
        raise errors.get()
    failed = [rank for rank, worker in enumerate(workers) if worker.exitcode]
    if failed:
        raise UserError(f"process {failed[0]} of {processes} ended with status {workers[failed[0]].exitcode}")


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


def _wait(number: int, frame: FrameType | None) -> None:
    """The workers were told too; they save and end."""


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
    try:
        train_table(specs, runs, device)
    except UserError as error:
        errors.put(error)
        raise SystemExit(error.exit_status) from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
