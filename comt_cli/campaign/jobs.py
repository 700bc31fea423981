"""`--jobs`: how many runs are trained at once on this machine, on which devices, with how many threads.

The rule, for every verb that trains: the number that --jobs gives; else one run at a time on each visible GPU; on
the CPU one on each core that this process may use, or fewer where the command has fewer runs or the memory would not
hold them. Several runs on the CPU share its cores evenly, unless OMP_NUM_THREADS gives the threads of each: threads
that work on one small network lose more in waiting for each other than they win.

It depends on the command and the machine, not on what is done already: a resumed run must compute with as many
threads as before to end on the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from comt_cli.errors import UserError
from comt_cli.runs.shared import SharedRun
from comt_cli.training.processes import launched_by_torchrun

MEMORY_SHARE = 0.7
"""Of the machine's memory, what runs may be estimated to take by default."""
SLIP = 4
"""More than so many times the machine's memory is refused, whoever asks for it."""
PROCESS_BYTES = 600 * 2**20
"""Memory of a process with torch before it has a model."""


@dataclass(frozen=True)
class Workers:
    """A device for every worker, and the threads of each; None leaves that to torch. `name` is what people call the
    device, with a worker's threads, as `result.json` has it."""

    devices: tuple[str, ...]
    threads: int | None = None
    name: str = field(default="", compare=False)


def check_jobs(jobs: int | None, processes: int) -> None:
    """Either one run on several devices, or several runs on one each. Raises `UserError` where both are asked for."""
    if jobs is None or jobs == 1:
        return
    if processes > 1:
        raise UserError(
            f"--jobs {jobs} with --gpus {processes}: runs on several devices are trained one after the other",
            "Leave one of the two out.",
        )
    if launched_by_torchrun():
        raise UserError(f"--jobs {jobs} under torchrun: its processes train one run together", "Leave --jobs out.")


def check_memory(option: str, processes: int) -> None:
    """Raise `UserError` for so many processes that the machine would be lost before the first of them trains. Who asks
    for a number knows more than the estimate: only several times what the memory holds is too many."""
    most = max(1, SLIP * _memory_bytes() // PROCESS_BYTES)
    if processes > most:
        raise UserError(
            f"{option} {processes}: processes with PyTorch alone would take about "
            f"{processes * PROCESS_BYTES / 2**30:,.0f} GiB, and this machine has {_memory_bytes() / 2**30:,.0f}",
            f"Choose far fewer than {most:,}.",
        )


def plan_workers(device_name: str | None, jobs: int | None, runs: Sequence[SharedRun]) -> Workers:
    """The rule above, for the runs of a command, done or not. Raises `UserError` where there is no such device here, or
    the memory does not hold the processes asked for."""
    import torch

    from comt_cli.training.devices import device_name as name_of
    from comt_cli.training.devices import pick_device

    device = pick_device(device_name)
    if jobs is not None:
        check_memory("--jobs", min(jobs, len(runs)))
    devices = [str(device)]
    if device.type == "cuda" and (device_name is None or ":" not in device_name):
        devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    at_once, threads = runs_at_once(device.type, len(devices), jobs, runs)
    return Workers(tuple(devices[index % len(devices)] for index in range(at_once)), threads, name_of(device, threads))


def runs_at_once(
    kind: str, count: int, jobs: int | None, runs: Sequence[SharedRun], sized: Sequence[SharedRun] | None = None
) -> tuple[int, int | None]:
    """How many of these runs are trained at once on `count` devices of a kind, by the rule above, and the threads of
    each; None leaves those to torch. The memory is that of `sized`, if given: of others it is not known yet."""
    if jobs is not None:
        jobs = max(1, min(jobs, len(runs)))
    if kind != "cpu":
        return jobs or min(count, max(1, len(runs))), None
    given = _given_threads()
    at_once = max(1, usable_cores() // (given or 1))
    wanted = jobs or max(1, min(at_once, len(runs), _fitting(runs if sized is None else sized)))
    is_said = bool(os.environ.get("OMP_NUM_THREADS"))
    return wanted, None if is_said or wanted == 1 else max(1, usable_cores() // wanted)


def usual_threads() -> int:
    """The threads that a process takes by default: OMP_NUM_THREADS, else one a core."""
    return _given_threads() or usable_cores()


def _given_threads() -> int:
    """OMP_NUM_THREADS; 0 where it is no number. Of a superscript two `isdigit` is true, and `int` refuses it."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() else 0


def usable_cores() -> int:
    """The processor's cores that this process may use: those it is bound to, and no more than its container grants."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup("cpu.max").split()  # microseconds of processor time, and of the clock's
    if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal():
        bound = min(bound, max(1, int(quota[0]) // int(quota[1])))
    return bound


def _fitting(runs: Sequence[SharedRun]) -> int:
    """How many of these runs the machine's memory holds at once, by the estimate for the largest of them."""
    from comt_cli.models.accounting import training_bytes

    distinct = {}
    for shared in runs:
        settings = shared.spec.settings
        key = (settings.model.model_dump_json(), settings.data.model_dump_json(), settings.train.micro_batch_size)
        distinct[key, settings.train.batch_size, settings.train.precision] = shared.spec
    largest = max(
        training_bytes(spec, spec.settings.train.micro_batch_size or spec.settings.train.batch_size)
        for spec in distinct.values()
    )
    return int(MEMORY_SHARE * _memory_bytes() / (largest + PROCESS_BYTES))


def _memory_bytes() -> int:
    """The machine's memory, or what its container grants of it."""
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    granted = _cgroup("memory.max").strip()
    return min(installed, int(granted)) if granted.isdecimal() else installed


def _cgroup(name: str) -> str:
    """A limit of the container that this process runs in; "" where there is none."""
    try:
        return (Path("/sys/fs/cgroup") / name).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
