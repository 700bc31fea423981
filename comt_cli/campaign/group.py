"""A group of processes that share every batch of every run, as torchrun would start them: one per GPU, or on the CPU.

Where one of two processes dies the other dies too, and complains that its peer reset the connection. So the first death
is reported with its exit status or signal; `faulthandler` writes the stack where native code fails.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from comt_cli.campaign.outcomes import TrainingFailed
from comt_cli.campaign.queue import RunQueue
from comt_cli.campaign.server import signals_blocked
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.runs.plan import RunSpec
from comt_cli.streams import mend_streams
from comt_cli.training.processes import PassedOnSignal, StopSignal, begin_as_worker, end_process

START_METHOD: Final = "spawn"
GRACE_SECONDS = 10.0
"""How long processes may continue after one of them has failed."""
_INTACT = "What was saved before is intact; the same command resumes from there."


def train_in_group(
    processes: int,
    specs: Sequence[RunSpec],
    runs: Path,
    device: str | None,
    train: Callable[[RunQueue, str | None], object],
) -> None:
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
    with PassedOnSignal(lambda: members) as stop:
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
        how = exit_texts([member.exitcode for member in members], failed)
        raise TrainingFailed(how, f"What it wrote before, if anything, is above. {_INTACT}")


def join(members: Sequence[BaseProcess]) -> list[int]:
    """Wait for all; returns the ranks of those that failed by themselves, in the order in which they did. Once one has
    failed the others may wait for it for ever: they get a moment, and are then ended."""
    running = list(members)
    failed: list[int] = []
    ended_by_us: list[BaseProcess] = []
    patience: float | None = None
    while running:
        ended = connection.wait([member.sentinel for member in running], patience)
        for member in [member for member in running if member.sentinel in ended]:
            running.remove(member)
            member.join()
            if member.exitcode:
                patience = GRACE_SECONDS
                if member not in ended_by_us:
                    failed.append(members.index(member))
        if not ended:
            for member in running:
                member.kill()
            ended_by_us = list(running)
    return failed


def _member(
    rank: int,
    size: int,
    port: int,
    specs: list[RunSpec],
    runs: Path,
    device: str | None,
    train: Callable[[RunQueue, str | None], object],
    errors: Any,
) -> None:
    begin_as_worker()  # before PyTorch is imported, which takes seconds
    signal.pthread_sigmask(signal.SIG_UNBLOCK, StopSignal.SIGNALS)
    mend_streams()
    faulthandler.enable(file=2)
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def exit_text(exitcode: int | None) -> str:
    """How a process ended, by the exit code that `multiprocessing` has of it."""
    if exitcode is None or exitcode >= 0:
        return f"ended with status {exitcode}"
    name = next((each.name for each in signal.Signals if each == -exitcode), f"signal {-exitcode}")
    hint = ", as the system does where memory runs out" if -exitcode == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def exit_texts(codes: Sequence[int | None], order: Sequence[int]) -> str:
    """One sentence on the processes that failed, by rank, the first to fail first; the others were their victims."""
    return "; then ".join(f"process {rank} of {len(codes)} {exit_text(codes[rank])}" for rank in order)
