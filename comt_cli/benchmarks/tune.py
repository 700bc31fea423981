"""The search for the tiles of the gated projection that are the fastest on a device."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from comt_cli.benchmarks import kernel_cases
from comt_cli.benchmarks.shapes import Shape
from comt_cli.kernels import tuning
from comt_cli.kernels.tuning import DTYPES, ROWS, Tiles, Tuned, candidates
from comt_cli.tasks.settings.llama import LlamaSize


def tune(
    pairs: Sequence[tuple[int, int]],
    rows: Sequence[int] = ROWS,
    dtypes: Sequence[str] = tuple(DTYPES),
    *,
    rank: int = 8,
    device: torch.device | str = "cuda",
    measure: Callable[[Callable[[], Any]], float] | None = None,
) -> Iterator[tuple[Tuned, float]]:
    """Measure the gated projection of every (n, d) with all `candidates`: the fastest, a row to `write`, and its ms.

    `measure` gives the milliseconds of a call; by default the median by CUDA events, with a cold L2 cache. Tiles that
    the device has no room for are passed over, and so are shapes for which it has no room with any tiles.
    """
    from triton.runtime.errors import OutOfResources
    from triton.testing import do_bench

    from comt_cli.kernels.triton.projection import projection

    measure = measure or (lambda call: float(do_bench(call, warmup=10, rep=50, return_mode="median")))
    device = torch.device(device)
    on_cuda = device.type == "cuda"
    source = torch.cuda.get_device_name(device) if on_cuda else str(device)
    for dtype, (n, d), t in itertools.product(dtypes, pairs, rows):
        x, weight, A, Wc, ws = (
            torch.randn(size, device=device).to(DTYPES[dtype])
            for size in ((t, d), (n, d), (rank, d), (n, rank), (1, rank))
        )
        times: dict[Tiles, float] = {}
        # kernels are launched, and events recorded, on the current device
        with torch.cuda.device(device) if on_cuda else contextlib.nullcontext():
            for tiles in candidates(t, dtype, rank):
                call = functools.partial(projection, x, weight, A, Wc, ws, None, 2.0, tiles)
                with contextlib.suppress(OutOfResources):
                    times[tiles] = measure(call)
        if not times:
            continue
        best = min(times, key=lambda tiles: times[tiles])
        yield Tuned("projection", n, d, t, dtype, best, source), times[best]


def tune_shapes(shapes: Sequence[Shape], dtypes: Sequence[str], device: torch.device) -> Iterator[str]:
    """`tune` for all products of some LLaMAs; yields a line for every find, which is put into the table of the program
    at once: a search that is stopped keeps what it has."""
    widths = [LlamaSize(each.width, each.ffn_width, each.layers, each.heads) for each in (s.built for s in shapes)]
    wanted = {kernel_cases.DTYPES[dtype] for dtype in dtypes}
    types = [name for name, dtype in DTYPES.items() if dtype in wanted]
    for row, milliseconds in tune(tuning.shapes(widths), dtypes=types, device=device):
        tuning.write([row])
        yield f"{row.kernel} n{row.n}-k{row.d}, {row.t} rows, {row.dtype}: {milliseconds:.3f} ms, {row.tiles}"
