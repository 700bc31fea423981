"""`comt bench kernels --tune`: in which tiles the Triton kernels are the fastest on this card, and how fast then.

All that is to be timed is compiled first, by several processes at once, into the caches of Triton and of PyTorch's
compiler. Then this process alone times it, in turns, group by group (`kernels`): the tiles of each kernel, and with the
fastest of them the operation beside its reference. A later call goes on with what is missing.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
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
from comt_cli.lab.bench.ending import Deadline, failed
from comt_cli.lab.bench.kernel_cases import DTYPES, Case
from comt_cli.lab.bench.kernels import Group, News, forms_of, gates_of, groups_of, run_groups, step_of
from comt_cli.lab.bench.memory import free
from comt_cli.lab.bench.rounds import GoOn, Turns
from comt_cli.lab.bench.shapes import Shape
from comt_cli.training.devices import prepare_process

KINDS: dict[str, Kind] = {"none": "none", "comt": "scalar", "transponder": "channel"}
"""What tiles call the kinds of gates."""
MOST_PROCESSES = 8
Job = tuple[Group, str, str, str]
"""A group, its gates, a variant, and the device: what a process compiles at a time."""


def to_tune(
    shapes: Sequence[Shape], ops: Sequence[str], gates: Sequence[str], dtypes: Sequence[str], device: torch.device
) -> list[Group]:
    """The groups that have not been measured under this very key, each with all of `gates` that a kernel takes here."""
    every = groups_of(shapes, [op for op in ops if op in get_args(Op)], dtypes)  # what has kernels of its own
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
        for each in every
        if not {(each.op, each.shape_name, each.dtype, kind) for kind in taken[each.dtype]} <= known
    ]


def _is_whole(row: Measured) -> bool:
    """Whether it is of these kernels, of tiles that were chosen, and in enough rounds to say something."""
    certain = all(row.error.get(variant, math.inf) < math.inf for variant in ("fused", "reference-compiled"))
    return row.kernel_hash == kernel_hash(row.op) and bool(row.tiles) and certain


def run_tuning(
    todo: Sequence[Group], gates: Sequence[str], device: torch.device, rounds: int, deadline: Deadline
) -> Iterator[News]:
    """Compile and measure these groups; yields what `kernels.run_kernel_benchmark` does. Compiling ends with half of
    the time: what is missing then is compiled when it is first timed."""
    half = deadline.left() / 2
    variants = "fused", "reference-compiled"
    jobs = [(group, kind, variant, str(device)) for group in todo for kind in gates for variant in variants]
    yield from compile_all(jobs, processes_for(todo, device), lambda: deadline.left() >= half)
    turns = Turns(device, rounds, deadline)
    yield from run_groups(todo, gates, turns, partial(fastest_tiles, turns))


def tiles_to_try(built: Case) -> list[tuple[Key, Tile]]:
    """The tiles of the kernels of an operation, forward and backward."""
    kind = KINDS[built.gates.partition("-")[0]]
    return [
        ((kernel, kind, built.widest), tile)
        for kernel in (built.op, f"{built.op}_backward")
        for tile in tiles.TILES.get((kernel, kind), ())
    ]


def fastest_tiles(turns: Turns, what: str, built: Case, step: Callable[[], object]) -> Generator[News, None, Tuned]:
    """The tiles with which a step takes the least time. Those with which it cannot run are left out.

    Each kernel's are timed with the other in its default, since the two run one after the other.
    """
    parts: dict[tuple[Key, Tile], Callable[[], object]] = {}
    for key, tile in tiles_to_try(built):
        part = partial(_step_in, {key: tile}, step)
        try:
            part()
        except Exception as error:  # of an older card, which has less room for them
            yield str(failed(f"{what}, {tiles_text([(key, tile)])}", error))
        else:
            parts[key, tile] = part
    best: dict[Key, Tile] = {}
    try:
        times = turns.of(parts, head_start=True) if parts else {}
    finally:
        choice.use_tiles(())  # again those of the kinds of gates before
    for key, tile in sorted(times, key=lambda each: times[each].undisturbed):
        best.setdefault(key, tile)
    return tuple(sorted(best.items()))


def _step_in(tuned: dict[Key, Tile], step: Callable[[], object]) -> None:
    tiles.use(tuned)
    step()


def compile_all(jobs: Sequence[Job], processes: int, go_on: GoOn) -> Iterator[str]:
    """Run what is to be timed once, in so many processes, and forget it; yields how far they came while `go_on`."""
    done = 0
    with signals_blocked():
        started = multiprocessing.get_context("spawn").Pool(processes, _begin)
    with started as pool:
        ended = pool.imap_unordered(compile_one, jobs)
        while done < len(jobs) and go_on():
            with contextlib.suppress(multiprocessing.TimeoutError):
                ended.next(timeout=1)
                done += 1
    rest = "" if done == len(jobs) else "; the rest is compiled when it is first timed"
    yield f"compiled {done} of {len(jobs)} parts, {processes} at a time{rest}"


def _begin() -> None:
    begin_as_helper()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # at once: a compiler does not return to Python for seconds


def compile_one(job: Job) -> None:
    """Run a variant once in each of its tiles. What fails is said when it is timed."""
    group, gates, variant, device = job
    torch._dynamo.reset()  # it has room for so many versions of one function
    torch._inductor.config.compile_threads = 1  # this is one of many processes already
    with contextlib.suppress(Exception):
        prepare_process(torch.device(device))
        built = group.case(gates, torch.device(device))
        step = step_of(forms_of(built)[variant], built)
        step()
        for key, tile in tiles_to_try(built) if variant == "fused" else []:
            with contextlib.suppress(Exception):
                _step_in({key: tile}, step)
    with contextlib.suppress(Exception):  # after an illegal access nothing works on the device
        free(torch.device(device))


def processes_for(todo: Sequence[Group], device: torch.device) -> int:
    """How many processes the cores and half of the device's free memory allow, each with an operation's tensors."""
    if device.type != "cuda":
        return 1
    elements = max(2 * group.shape.built.ffn_width * group.shape.units for group in todo)
    each: int = 2**30 + 6 * elements * max(DTYPES[group.dtype].itemsize for group in todo)  # and the device's own GiB
    free_bytes: int = torch.cuda.mem_get_info(device)[0]
    return max(1, min(MOST_PROCESSES, usable_cores(), free_bytes // 2 // each))
