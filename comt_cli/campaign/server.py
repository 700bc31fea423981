"""The process that workers on the CPU are forked from: it imports PyTorch once, for all of them.

It runs nothing, so it has one thread and no open pool of OpenMP: what is forked from it starts as if it had imported
everything itself. Where there is a GPU, a worker imports PyTorch by itself (`spawn`): a driver that was asked anything
before a fork is of no use after it; and so it does on systems whose libraries cannot be forked.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext

from comt_cli.runs.plan import RunSpec
from comt_cli.training.processes import StopSignal, die_with_parent, environment_variable

LOADED = (
    *("torch", "torch._dynamo", "comt_cli.campaign.inline", "comt_cli.campaign.probe", "comt_cli.campaign.workers"),
    "comt_cli.models.counting",
)


def context_for(devices: Iterable[str]) -> ForkServerContext | SpawnContext:
    """How the processes that train on these devices are started."""
    if sys.platform == "linux" and all(device == "cpu" for device in devices):
        return multiprocessing.get_context("forkserver")
    return multiprocessing.get_context("spawn")


def start_server(specs: Sequence[RunSpec]) -> None:
    """Have the server import what these runs need, while this process does other things. Does nothing where there is a
    server already, or where none is used."""
    if sys.platform != "linux":
        return
    trained = dict.fromkeys(f"comt_cli.training.tasks.{spec.task.name}" for spec in specs)
    multiprocessing.set_forkserver_preload([*LOADED, *trained])
    # NumPy's BLAS, which nothing here uses, starts its threads when it is imported; who forks should have none.
    with signals_blocked(), environment_variable("OPENBLAS_NUM_THREADS", "1"):
        multiprocessing.forkserver.ensure_running()


def begin_as_helper() -> None:
    """Beginning of a process that works for its parent and saves nothing: it ends with its parent, however that
    ends, leaves every signal of a terminal, of Slurm or of a limit to it, and ends when asked to."""
    die_with_parent()
    for number in StopSignal.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # through what is open: a compiler's folder is removed
    signal.pthread_sigmask(signal.SIG_UNBLOCK, StopSignal.SIGNALS)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """A process that is started here receives no signal until it unblocks them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, StopSignal.SIGNALS)
    try:
        resource_tracker.ensure_running()  # which no signal to all may end; its start unblocks SIGINT and SIGTERM
        signal.pthread_sigmask(signal.SIG_BLOCK, StopSignal.SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
