"""`comt bench kernels --tune`: in which tiles the Triton kernels are the fastest on this card, and how fast then.

All that is to be timed is compiled first, by several processes at once, into the caches of Triton and of PyTorch's
compiler. Then this process alone times it, in turns, case by case (`kernels`): the tiles of each kernel, and with the
fastest of them the operation beside its reference. A later call goes on with what is missing.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import get_args

import torch
import torch._inductor.config

from comt_cli.campaign.jobs import usable_cores
from comt_cli.campaign.server import begin_as_helper, signals_blocked
from comt_cli.kernels import choice, measurements
from comt_cli.kernels.choice import Op, device_here, versions_here
from comt_cli.kernels.measurements import Measured, Tuned, kernel_hash, tiles_text
from comt_cli.kernels.triton import tiles
from comt_cli.kernels.triton.tiles import Key, Kind, Tile
from comt_cli.lab.bench.kernels import KernelCase, Operation, gates_of, kernel_cases, step_of
from comt_cli.lab.bench.runner import DTYPES, News, Turns, failed, run_cases
from comt_cli.lab.bench.tables import Shape
from comt_cli.lab.bench.timing import finished, free, in_turns, stopwatch_for
from comt_cli.training.devices import prepare_process

KINDS: dict[str, Kind] = {"none": "none", "comt": "scalar", "transponder": "channel"}
"""The kinds of gates in the tables of tiles."""
MOST_PROCESSES = 8
Job = tuple[KernelCase, str, str]
"""A case, its gates and a variant: what a process compiles at a time."""


def to_tune(
    shapes: Sequence[Shape], ops: Sequence[str], gates: Sequence[str], dtypes: Sequence[str], device: torch.device
) -> list[KernelCase]:
    """The cases that have not been measured under this very key, each with all of `gates` that a kernel takes here."""
    cases = kernel_cases(shapes, [op for op in ops if op in get_args(Op)], gates, dtypes, device)
    here, versions = device_here(device), versions_here()
    known = {
        (row.op, row.shape, row.dtype, f"{row.kind}-r{row.rank}" if row.rank else row.kind)
        for row in measurements.measurements()[0]
        if row.own and row.device == here and (row.torch, row.triton) == versions and _is_whole(row)
    }
    taken = {
        dtype: [kind for kind in gates if choice.obstacle(device, DTYPES[dtype], gates_of(kind)) is None]
        for dtype in dtypes
    }
    return [
        each
        for each in cases
        if not {(each.op, each.shape_name, each.dtype, kind) for kind in taken[each.dtype]} <= known
    ]


def _is_whole(row: Measured) -> bool:
    """Whether it is of these kernels, of tiles that were chosen, and in enough rounds to say something."""
    certain = all(row.error.get(variant, math.inf) < math.inf for variant in ("fused", "reference-compiled"))
    return row.kernel_hash == kernel_hash(row.op) and bool(row.tiles) and certain


def run_tuning(todo: Sequence[KernelCase], device: torch.device, turns: Turns) -> Iterator[News]:
    """Compile and measure these cases; yields what `run_cases` does. Compiling ends with half of the time: what is
    missing then is compiled when it is first timed."""
    half = turns.deadline.left() / 2
    jobs = [(case, *key) for case in todo for key in case.keys if key[1] != "reference"]
    yield from compile_all(jobs, processes_for(todo, device), lambda: turns.deadline.left() >= half)
    for case in todo:
        case.tune = partial(fastest_tiles, turns, device)
    yield from run_cases(todo, turns)


def tiles_to_try(built: Operation) -> list[tuple[Key, Tile]]:
    """The tiles of the kernels of an operation, forward and backward."""
    kind = KINDS[built.gates.partition("-")[0]]
    return [
        ((kernel, kind, built.widest), tile)
        for kernel in (built.op, f"{built.op}_backward")
        for tile in tiles.TILES.get((kernel, kind), ())
    ]


def fastest_tiles(
    turns: Turns, device: torch.device, built: Operation, step: Callable[[], object]
) -> tuple[Tuned, list[str]]:
    """The tiles with which a step takes the least time, and a remark on those with which it cannot run.

    Each kernel's are timed with the other in its default, since the two run one after the other.
    """
    parts, notes, best = dict[tuple[Key, Tile], Callable[[], object]](), list[str](), dict[Key, Tile]()
    for key, tile in tiles_to_try(built):
        part = partial(_step_in, {key: tile}, step)
        try:
            part()
        except Exception as error:  # of an older card, which has less room for them
            notes.append(str(failed(tiles_text([(key, tile)]), error)))
        else:
            parts[key, tile] = part
    try:
        how = stopwatch_for(device, head_start=True)
        times = finished(in_turns(parts, turns.rounds, how, go_on=turns.deadline)) if parts else {}
    finally:
        choice.use_tiles(())  # again those of the kinds of gates before
    for key, tile in sorted(times, key=lambda each: times[each].undisturbed):
        best.setdefault(key, tile)
    return tuple(sorted(best.items())), notes


def _step_in(tuned: dict[Key, Tile], step: Callable[[], object]) -> None:
    tiles.use(tuned)
    step()


def compile_all(jobs: Sequence[Job], processes: int, go_on: Callable[[], bool]) -> Iterator[str]:
    """Run what is to be timed once, in so many processes, and forget it; yields how far they came while `go_on`."""
    done = 0
    with signals_blocked():
        started = multiprocessing.get_context("spawn").Pool(processes, begin_as_helper)
    with started as pool:
        ended = pool.imap_unordered(compile_one, jobs)
        while done < len(jobs) and go_on():
            with contextlib.suppress(multiprocessing.TimeoutError):
                ended.next(timeout=1)
                done += 1
    rest = "" if done == len(jobs) else "; the rest is compiled when it is first timed"
    yield f"compiled {done} of {len(jobs)} parts, {processes} at a time{rest}"


def compile_one(job: Job) -> None:
    """Run a variant once in each of its tiles. What fails is said when it is timed."""
    case, gates, variant = job
    torch._dynamo.reset()  # it has room for so many versions of one function
    torch._inductor.config.compile_threads = 1  # this is one of many processes already
    with contextlib.suppress(Exception):
        prepare_process(case.device)
        built = case.operation(gates)
        step = step_of(built.form(variant), built)
        step()
        for key, tile in tiles_to_try(built) if variant == "fused" else []:
            with contextlib.suppress(Exception):
                _step_in({key: tile}, step)
    with contextlib.suppress(Exception):  # after an illegal access nothing works on the device
        free(case.device)


def processes_for(todo: Sequence[KernelCase], device: torch.device) -> int:
    """How many processes the cores and half of the device's free memory allow, each with an operation's tensors."""
    if device.type != "cuda":
        return 1
    elements = max(2 * case.shape.built.ffn_width * case.shape.units for case in todo)
    each: int = 2**30 + 6 * elements * max(DTYPES[case.dtype].itemsize for case in todo)  # and the device's own GiB
    free_bytes: int = torch.cuda.mem_get_info(device)[0]
    return max(1, min(MOST_PROCESSES, usable_cores(), free_bytes // 2 // each))
