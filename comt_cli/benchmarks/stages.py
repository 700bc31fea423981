"""Everything worth measuring on a device, the most wanted first, as much of it as a given time allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from comt_cli.benchmarks import decode, kernel_cases, step_variants
from comt_cli.benchmarks.decode import run_decode_benchmark
from comt_cli.benchmarks.kernels import run_gemm_benchmark, run_kernel_benchmark
from comt_cli.benchmarks.shapes import GPU_SIZES, SHAPES, Shape
from comt_cli.benchmarks.step import run_step_benchmark
from comt_cli.benchmarks.step_variants import CompileWhat
from comt_cli.recipe.settings import Precision

Kind = Literal["kernels", "step", "decode"]
"""The verb that measures it alone, and the file that its rows go to."""
News = str | list[Any]
_DEEP = 12
"""From so many layers on, one block is compiled instead of the whole model: 24 layers as one graph take minutes."""


@dataclass(frozen=True)
class Stage:
    """A part of `comt bench all`: how long it is likely to take, and what does it; that is told when time is up."""

    kind: Kind
    what: str
    seconds: float
    run: Callable[[Callable[[], bool]], Iterator[News]]


class Deadline:
    """A point in time, and the seconds to it."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    def left(self) -> float:
        """Seconds; below 0 when it has passed."""
        return self._end - self._clock()


def run_stages(stages: list[Stage], deadline: Deadline) -> Iterator[tuple[Kind, News]]:
    """The news of one stage after another, with its kind. One that is not likely to end in time is left out, and said.

    What a stage took, against what it was said to take, corrects what is said of the next one alike.
    """
    pace: dict[str, float] = {}
    for stage in stages:
        alike = stage.what.partition(" at ")[0]
        needs = stage.seconds * pace.get(alike, 1.0)
        left = deadline.left()
        if needs > left:
            yield (
                stage.kind,
                f"left out for want of time: {stage.what} (about {needs:.0f} s, {max(0.0, left):.0f} s left)",
            )
            continue
        yield stage.kind, f"{stage.what} ({left:.0f} s left)"
        for news in stage.run(lambda: deadline.left() > 0):
            yield stage.kind, news
        pace[alike] = (left - deadline.left()) / stage.seconds


def stages_for(device: torch.device, rounds: int) -> list[Stage]:
    """What there is to measure on a device, in the order in which it is wanted."""
    return _on_cuda(device, rounds) if device.type == "cuda" else _on_cpu(device, rounds)


def _on_cuda(device: torch.device, rounds: int) -> list[Stage]:
    gemm, kernels, step, decoding = _makers(device, rounds)
    sizes = [SHAPES[size] for size in GPU_SIZES]
    small, larger = sizes[:2], sizes[2:]
    return [
        gemm(sizes, ["bf16"], 30),
        kernels(sizes[0], "bf16", 90),
        *(step(shape, "bf16-pure", seconds) for shape, seconds in zip(small, (100, 130), strict=True)),
        decoding(sizes[0], "bf16", 40),
        *(step(shape, "bf16-pure", seconds) for shape, seconds in zip(larger, (110, 110, 120), strict=True)),
        kernels(sizes[-1], "bf16", 90),
        *(decoding(shape, "bf16", seconds) for shape, seconds in zip(sizes[1:], (50, 80, 80, 90), strict=True)),
        *(kernels(shape, "bf16", 90) for shape in sizes[1:-1]),
        kernels(sizes[0], "fp32", 90),
    ]


def _on_cpu(device: torch.device, rounds: int) -> list[Stage]:
    gemm, kernels, step, decoding = _makers(device, rounds)
    bench, smoke = SHAPES["bench"], SHAPES["smoke"]
    types = ("fp32", "bf16")
    return [
        gemm([bench], list(types), 15),
        *(kernels(bench, dtype, 80) for dtype in types),
        *(step(bench, precision, 160) for precision in ("fp32", "bf16-pure")),
        *(decoding(bench, dtype, 25) for dtype in types),
        *(kernels(smoke, dtype, 60) for dtype in types),
    ]


def _makers(device: torch.device, rounds: int) -> Any:
    """What makes a stage of each kind for one device."""

    def gemm(shapes: list[Shape], dtypes: list[str], seconds: float) -> Stage:
        def run(go_on: Callable[[], bool]) -> Iterator[News]:
            return run_gemm_benchmark(shapes, dtypes, device, rounds, go_on)

        return Stage("kernels", "matrix products at all sizes", seconds, run)

    def kernels(shape: Shape, dtype: str, seconds: float) -> Stage:
        def run(go_on: Callable[[], bool]) -> Iterator[News]:
            ops, gates = list(kernel_cases.OPS), list(kernel_cases.GATES)
            return run_kernel_benchmark([shape], ops, gates, [dtype], device, rounds, go_on)

        return Stage("kernels", f"kernels at {shape.size}, {dtype}", seconds, run)

    def step(shape: Shape, precision: Precision, seconds: float) -> Stage:
        what: CompileWhat = "block" if shape.layers > _DEEP else "whole"

        def run(_: Callable[[], bool]) -> Iterator[News]:
            return run_step_benchmark(shape, precision, list(step_variants.VARIANTS), device, rounds, what)

        return Stage("step", f"training step at {shape.size}, {precision}", seconds, run)

    def decoding(shape: Shape, dtype: str, seconds: float) -> Stage:
        run = partial(run_decode_benchmark, [shape], list(decode.VARIANTS), [dtype], decode.BATCHES, device, rounds)
        return Stage("decode", f"decoding at {shape.size}, {dtype}", seconds, run)

    return gemm, kernels, step, decoding
