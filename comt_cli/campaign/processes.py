"""Processes that train several runs at once: their number, devices, threads and start.

The number is --jobs; by default one per visible GPU, or on the CPU one per usable core, but not more than there are
runs or than memory holds. Runs on the CPU share its cores evenly unless OMP_NUM_THREADS is set. The rule depends on the
command and the machine, not on finished runs: a resumed run needs the same number of threads to end on the same bits.
On the CPU, processes are forked from a server that has imported PyTorch and has one thread. With a GPU each process
imports PyTorch itself (`spawn`), since the CUDA driver does not survive a fork."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path

from comt_cli.runs.known import SharedRun
from comt_cli.runs.plan import RunSpec
from comt_cli.training.processes import StopSignal, die_with_parent, environment_variable

LOADED = ("torch", "torch._dynamo", "comt_cli.campaign.inline", "comt_cli.campaign.workers", "comt_cli.models.build")
"""Modules that the server always imports."""
MEMORY_SHARE = 0.7
"""Share of the machine's memory that runs may take by their estimates."""
PROCESS_BYTES = 600 * 2**20
"""Memory of a process with torch before it has a model."""


@dataclass(frozen=True)
class Workers:
    """One device per worker, and the threads of each (None: torch's default). `name` is the device in `result.json`."""

    devices: tuple[str, ...]
    threads: int | None = None
    name: str = field(default="", compare=False)


def plan_workers(asked: str | None, jobs: int | None, runs: Sequence[SharedRun]) -> Workers:
    """The workers for all runs of a command, done or not. Raises `UserError` if the device is missing."""
    import torch

    from comt_cli.training.devices import device_name, pick_device

    device = pick_device(asked)
    devices = [str(device)]
    if device.type == "cuda" and (asked is None or ":" not in asked):
        devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    at_once, threads = runs_at_once(device.type, len(devices), jobs, runs)
    places = tuple(devices[index % len(devices)] for index in range(at_once))
    return Workers(places, threads, device_name(device, threads))


def runs_at_once(kind: str, count: int, jobs: int | None, runs: Sequence[SharedRun]) -> tuple[int, int | None]:
    """The number of runs at once on `count` devices of a kind, and the threads of each (None: torch's default)."""
    cores, given = usable_cores(), os.environ.get("OMP_NUM_THREADS")
    if jobs is None:
        jobs = min(cores // (_given_threads() or 1), _fitting(runs)) if kind == "cpu" else count
    jobs = max(1, min(jobs, len(runs)))
    return jobs, None if given or kind != "cpu" or jobs == 1 else max(1, cores // jobs)


def usual_threads() -> int:
    """The default number of threads of a process: OMP_NUM_THREADS, else one per core."""
    return _given_threads() or usable_cores()


def _given_threads() -> int:
    """OMP_NUM_THREADS; 0 if it is not a number. (`isdigit` accepts superscripts, which `int` refuses.)"""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() else 0


def usable_cores() -> int:
    """The number of cores that this process may use, by its affinity and its container's limit."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup("cpu.max").split()  # microseconds of processor time per microseconds of wall time
    if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal():
        bound = min(bound, max(1, int(quota[0]) // int(quota[1])))
    return bound


def _fitting(runs: Sequence[SharedRun]) -> int:
    """The number of these runs that fit in memory at once, by the estimate for the largest."""
    from comt_cli.models.memory import memory_of

    largest = max(memory_of(shared.spec).total for shared in runs)
    return int(MEMORY_SHARE * _memory_bytes() / (largest + PROCESS_BYTES))


def _memory_bytes() -> int:
    """The memory of the machine or container, in bytes."""
    installed, granted = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _cgroup("memory.max").strip()
    return min(installed, int(granted)) if granted.isdecimal() else installed


def _cgroup(name: str) -> str:
    """A limit of this process's container; "" if there is none."""
    try:
        return (Path("/sys/fs/cgroup") / name).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


# ---- how they are started


def context_for(devices: Iterable[str]) -> ForkServerContext | SpawnContext:
    """The multiprocessing context for training on these devices."""
    if sys.platform == "linux" and all(device == "cpu" for device in devices):
        return multiprocessing.get_context("forkserver")
    return multiprocessing.get_context("spawn")


def start_server(specs: Sequence[RunSpec]) -> None:
    """Start the server, which imports the modules of these runs in the background; only on Linux."""
    if sys.platform != "linux":
        return
    trained = dict.fromkeys(f"comt_cli.training.tasks.{spec.task.name}" for spec in specs)
    multiprocessing.set_forkserver_preload([*LOADED, *trained])
    # NumPy's BLAS starts threads at import, which a process that forks should not have. Nothing here uses it.
    with signals_blocked(), environment_variable("OPENBLAS_NUM_THREADS", "1"):
        multiprocessing.forkserver.ensure_running()


def begin_as_helper() -> None:
    """Set up a helper process that saves nothing: it ends with its parent, ignores signals of a terminal or of Slurm,
    and ends at SIGTERM."""
    die_with_parent()
    for number in StopSignal.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # immediate: a compiler may not return to Python for seconds
    signal.pthread_sigmask(signal.SIG_UNBLOCK, StopSignal.SIGNALS)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals, so that processes started here receive none until they unblock them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, StopSignal.SIGNALS)
    try:
        resource_tracker.ensure_running()  # no signal may end it; its start unblocks SIGINT and SIGTERM
        signal.pthread_sigmask(signal.SIG_BLOCK, StopSignal.SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
