"""What Transponder's training step should take on an H200 beside the plain one, by the instructions counted.

A kernel takes the longer of its traffic, at 88 % of the memory's speed, and of its instructions, at a share of what the
schedulers can issue. What is beyond the plain step: the gated kernels less the compiled plain ones, the products'
columns for u, and eight small launches for the gates' matrices and four for sums, a layer, of 2.2 us each. An estimate
from counts (results/bench/hopper-counts.md), and no measurement. Run as a program it prints the page's table:

    python tests/unit/kernels/hopper_step.py
"""

from __future__ import annotations

from collections.abc import Iterator

from comt_cli.benchmarks.goals import OF_LLAMAS
from comt_cli.benchmarks.llama_roofline import BYTES_PER_SECOND, FLOPS_PER_SECOND, roofline_of
from comt_cli.benchmarks.subjects import LANGUAGE

MEMORY, PRODUCTS = 0.88, 0.8
"""Shares of full speed."""
ISSUED = 132 * 4 * 32 * 1.85e9
"""Instructions of threads a second, one a clock of each of four schedulers on 132 multiprocessors."""
SMALL_LAUNCHES = 12 * 2.2e-6
BACKWARD_PROGRAMS = 342
COUNTED = {  # instructions an element; passes over [T, D], of swiglu over [T, F]
    "heads": (3 * 15.8, 6), "add_norm": (32.0, 4), "swiglu": (32.9, 3),
    "heads_backward": (3 * 39.3, 9), "add_norm_backward": (81.8, 6), "swiglu_backward": (70.4, 5),
}  # fmt: skip
"""Transponder, r = 8, bf16, as models launch them at 60m. Heads: their three sites' elements together."""
RANK, TILE = 8, 128
HALF, FULL = (0.75, 0.5), (1.0, 1.0)
"""Shares of what can be issued, forward and backward."""


def step_ratio(size: str, issue: tuple[float, float], *, whole_tiles: bool) -> float:
    """Of Transponder's step to the plain one."""
    shape = LANGUAGE.shapes[size]
    roofline = roofline_of(shape, PRODUCTS)
    D, F, T = roofline.size.width, -(-roofline.size.ffn_width // 8) * 8, roofline.tokens

    def passes(width: int, count: int) -> float:
        return count * 2 * T * width / (MEMORY * BYTES_PER_SECOND)

    seconds = 0.0
    for kernel, (instructions, count) in COUNTED.items():
        is_swiglu, is_back = kernel.startswith("swiglu"), kernel.endswith("backward")
        width, times = F if is_swiglu else D, 2 if kernel.startswith("add_norm") else 1
        traffic = passes(width, count)
        if kernel == "swiglu_backward":  # each program's dWc in fp32, written and read
            traffic += BACKWARD_PROGRAMS * 2 * F * RANK * 8 / (MEMORY * BYTES_PER_SECOND)
        seconds += times * max(traffic, instructions * T * width / (ISSUED * issue[is_back]))
    seconds -= passes(D, 4) + passes(F, 3) + passes(D, 8) + passes(D, 6) + passes(F, 5) + passes(D, 8)  # the plain ones
    for product in roofline.products():
        whole, N = 3 * 2 * T * product.N * product.K / (PRODUCTS * FLOPS_PER_SECOND), product.N
        wider = -(-(N + RANK * product.sites) // 8) * 8
        tiles = -(-wider // TILE) / -(-N // TILE)
        seconds += whole * ((tiles if whole_tiles else wider / N) - 1)
    step, _ = roofline.plain()
    return 1 + roofline.size.layers * (seconds + SMALL_LAUNCHES) / step


def table() -> Iterator[str]:
    """The page's lines."""
    yield "| size | goal | all can issue | all, whole tiles | half | half, whole tiles |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for size in LANGUAGE.gpu_sizes:
        ratios = [step_ratio(size, issue, whole_tiles=tiles) for issue in (FULL, HALF) for tiles in (False, True)]
        goal = OF_LLAMAS.gpu[size]["transponder"]["step"]
        yield f"| {size} | {goal:.3f} | {' | '.join(f'{ratio:.3f}' for ratio in ratios)} |"


if __name__ == "__main__":
    print("\n".join(table()))
