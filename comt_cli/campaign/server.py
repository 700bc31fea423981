"""The process that workers on the CPU are forked from, which imports PyTorch once for them; and the device probe.

It runs nothing, so it has one thread and no open pool of OpenMP: what is forked from it starts as if it had imported
everything itself. Where there is a GPU, a worker imports PyTorch by itself (`spawn`): a driver that was asked anything
before a fork is of no use after it; and so it does on systems whose libraries cannot be forked.

The probe is a process that runs ahead of the workers while the data is being prepared. It finds out how many there can
be, and on which devices, which takes PyTorch: so the command's own process need not import it, unless it then trains by
itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from comt_cli.campaign.jobs import Workers, plan_workers
from comt_cli.campaign.outcomes import TrainingFailed, check_not_stopped
from comt_cli.errors import UserError
from comt_cli.models.accounting import check_methods
from comt_cli.runs.plan import RunSpec
from comt_cli.runs.shared import SharedRun
from comt_cli.training.processes import StopSignal, die_with_parent, end_process, environment_variable

LOADED = (
    *("torch", "torch._dynamo", "comt_cli.campaign.inline", "comt_cli.campaign.server", "comt_cli.campaign.workers"),
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
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # at once: a compiler does not return to Python for seconds
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


PATIENCE_SECONDS = 1.5
"""How long it may take to end once it is asked to."""


@contextlib.contextmanager
def device_probe(
    device: str | None, jobs: int | None, runs: Sequence[SharedRun], folder: Path
) -> Iterator[DeviceProbe]:
    """Start the probe for runs below a folder; it ends with this context."""
    start_server([shared.spec for shared in runs])
    context = context_for(["cpu"])
    ours, theirs = context.Pipe()
    probe = DeviceProbe(ours, theirs, context.Process(target=_probe, args=(theirs, device, jobs, folder)), list(runs))
    try:
        yield probe
    finally:
        probe.end()


class DeviceProbe:
    """The process, as its parent sees it."""

    def __init__(
        self, ours: Connection, theirs: Connection, process: BaseProcess, runs: Sequence[SharedRun] = ()
    ) -> None:
        self._pipe, self._process = ours, process
        # In a thread, since it waits for the server to have imported PyTorch.
        self._starter = threading.Thread(target=_start, args=(process, ours, theirs, runs), daemon=True)
        self._starter.start()

    def workers(self, stop: StopSignal) -> Workers:
        """The workers that it found room for. Raises `UserError` where there is no such device, or a run cannot start
        from its source, `RunInterrupted` where a signal came meanwhile, `TrainingFailed` where it ended without an
        answer."""
        while not self._pipe.poll(0.1):
            check_not_stopped(stop)
        try:
            found = self._pipe.recv()
        except EOFError:
            self._starter.join()
            if self._process.pid is not None:
                self._process.join(PATIENCE_SECONDS)
            check_not_stopped(stop)  # a signal to the whole group of processes may have reached it first
            raise TrainingFailed(
                f"the process that looks for devices ended with status {self._process.exitcode}",
                "Its output is above."
                + (" --jobs 1 trains without it." if (self._process.exitcode or 0) < 0 else ""),  # killed, not ended
            ) from None
        if isinstance(found, UserError):
            raise found
        assert isinstance(found, Workers)
        return found

    def end(self) -> None:
        """End the process: at the latest when the command ends."""
        if self._starter.is_alive() or self._process.pid is None:
            return  # the server is still importing, and ends with this process
        self._process.terminate()
        self._process.join(PATIENCE_SECONDS)
        self._process.kill()


def _start(process: BaseProcess, ours: Connection, theirs: Connection, runs: Sequence[SharedRun]) -> None:
    with contextlib.suppress(EOFError, OSError):  # a closed pipe means that the server died
        with contextlib.closing(theirs):
            process.start()
        ours.send(runs)


def _probe(pipe: Connection, device: str | None, jobs: int | None, folder: Path) -> None:
    """The process's work. Its arguments are few: the system takes them at once, and a command that ends meanwhile
    leaves no half of them. The runs may be many, and come through the pipe."""
    begin_as_helper()
    try:
        runs = pipe.recv()
    except (EOFError, OSError):  # the command has ended
        end_process(0)
    try:
        check_methods(shared.spec for shared in runs if not shared.directory(folder).is_begun)
        workers = plan_workers(device, jobs, runs)
        if any(shared.spec.start is not None for shared in runs):
            from comt_cli.training.checkpoint import check_starts

            check_starts(shared.spec for shared in runs)
    except UserError as error:
        pipe.send(error)
        return
    pipe.send(workers)
    end_process(0)
