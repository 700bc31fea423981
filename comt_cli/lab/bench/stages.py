"""Everything worth measuring on a processor, the most wanted first, as much of it as a given time allows.

The seconds of the stages were measured on two cores. What is worth measuring on a GPU is in `gpu`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from comt_cli.lab.bench.decode import BATCHES, run_decode_benchmark
from comt_cli.lab.bench.decode_translation import run_translation_benchmark
from comt_cli.lab.bench.failures import Failed, failed
from comt_cli.lab.bench.kernels import run_gemm_benchmark, run_kernel_benchmark
from comt_cli.lab.bench.limits import Deadline
from comt_cli.lab.bench.names import DECODE_VARIANTS, GATES, OPS, TRANSLATION_VARIANTS
from comt_cli.lab.bench.rounds import GoOn
from comt_cli.lab.bench.shapes import LLAMAS, Shape
from comt_cli.lab.bench.step import run_step_benchmark
from comt_cli.lab.bench.subjects import IMAGES, LANGUAGE, SUBJECTS, TRANSLATION, Subject, needs_cuda, subject_of
from comt_cli.recipe.settings import Precision

News = str | list[Any]
WANTED_IMAGE_STEPS = (
    "plain",
    "plain-compiled",
    "plain-fused-eager",
    "window-eager",
    "window-fused-eager",
    "pixel-eager",
    "pixel-fused-eager",
)
"""Of a ResNet: the steps that goals are about, and the pairs that `train.kernels: auto` compares. All but one are
uncompiled, as training on a CPU is: a compiled step takes up to a minute to build."""
_STEP_SECONDS = {"mt-bench": 200}
_GUESS = 120
"""Of other sizes."""


@dataclass(frozen=True)
class Stage:
    """A part of `comt bench all`: how many seconds it is likely to take, and what does it, which asks whether there is
    time left, and ends soon where not. `kind` names the file that its rows go to."""

    kind: str
    what: str
    seconds: float
    run: Callable[[GoOn], Iterator[News]]


def reach(stages: Sequence[Stage], seconds: float) -> str:
    """How many of the stages so many seconds are likely to reach, and how long all of them take, in words."""
    ends = list(itertools.accumulate(stage.seconds for stage in stages))
    inside = bisect.bisect_right(ends, seconds)
    last = f", the last of them: {stages[inside - 1].what}" if inside else ""
    every = math.ceil(ends[-1] / 60)
    return f"{seconds / 60:g} minutes are likely to reach {inside} of {len(stages)} parts{last}; all take about {every}"


class _Allowance:
    """Tells a stage whether time is left, and remembers whether it ever said no."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline, self.said_no = deadline, False

    def __call__(self) -> bool:
        may = self._deadline()
        self.said_no |= not may
        return may


def run_stages(stages: list[Stage], deadline: Deadline) -> Iterator[tuple[str, News]]:
    """What one stage after another yields, with its kind. A line names each that is left out for want of time.

    What a stage took, compared with its estimate, corrects the estimate of the next one alike, unless it was cut short.
    A stage that fails is reported, and the next one follows.
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
        allowance = _Allowance(deadline)
        has_failed = False
        try:
            for news in stage.run(allowance):
                has_failed |= isinstance(news, Failed)
                yield stage.kind, news
        except Exception as error:
            has_failed = True
            yield stage.kind, failed(stage.what, error)
        if not (has_failed or allowance.said_no):
            pace[alike] = (left - deadline.left()) / stage.seconds


def stages_for(device: torch.device, rounds: int = 15) -> list[Stage]:
    """What there is to measure: first as much of everything as nine minutes are likely to hold, then the rest."""
    make = _Makers(device, rounds)
    bench, smoke, images = LLAMAS["bench"], LLAMAS["smoke"], IMAGES.shapes["resnet18-b32"]
    types = ("fp32", "bf16")
    others = [subject for subject in SUBJECTS if subject not in (LANGUAGE, IMAGES)]

    def steps(subject: Subject) -> list[Stage]:
        precisions = subject.default_precisions(device.type)
        return [make.step(subject.shapes[size], each) for size in subject.cpu_sizes for each in precisions]

    return [
        make.gemm([bench], list(types), 15),
        *(make.kernels(bench, dtype, 80) for dtype in types),
        *(make.step(bench, precision, 115) for precision in LANGUAGE.default_precisions(device.type)),
        make.step(images, "bf16-mixed", 85),
        *(make.decoding(bench, dtype, 25, BATCHES) for dtype in types),
        make.step(images, "fp32", 130),
        *(stage for subject in others for stage in steps(subject)),
        make.translating(TRANSLATION.shapes["mt-bench"], "fp32", 60),
        *(make.kernels(smoke, dtype, 60) for dtype in types),
    ]


@dataclass(frozen=True)
class _Makers:
    """What makes a stage of each kind for one device."""

    device: torch.device
    rounds: int

    def gemm(self, shapes: list[Shape], dtypes: list[str], seconds: float) -> Stage:
        run = partial(run_gemm_benchmark, shapes, dtypes, self.device, self.rounds)
        return Stage("kernels", "matrix products at all sizes", seconds, run)

    def kernels(self, shape: Shape, dtype: str, seconds: float) -> Stage:
        run = partial(run_kernel_benchmark, [shape], list(OPS), list(GATES), [dtype], self.device, self.rounds)
        return Stage("kernels", f"kernels at {shape.size}, {dtype}", seconds, run)

    def step(self, shape: Shape, precision: Precision, seconds: float | None = None) -> Stage:
        subject = subject_of(shape.size)
        wanted = WANTED_IMAGE_STEPS if subject is IMAGES else subject.variants_of(shape.size)
        variants = [name for name in wanted if not needs_cuda(name)]
        run = partial(run_step_benchmark, shape, precision, variants, self.device, self.rounds, "whole")
        seconds = seconds or _STEP_SECONDS.get(shape.size, _GUESS)
        return Stage(subject.page, f"{subject.stage} at {shape.size}, {precision}", seconds, run)

    def translating(self, shape: Shape, dtype: str, seconds: float) -> Stage:
        names, batches = list(TRANSLATION_VARIANTS), (1, 16)
        run = partial(run_translation_benchmark, [shape], names, [dtype], batches, self.device, self.rounds)
        return Stage("decode-translation", f"translating at {shape.size}, {dtype}", seconds, run)

    def decoding(self, shape: Shape, dtype: str, seconds: float, batches: Sequence[int]) -> Stage:
        run = partial(run_decode_benchmark, [shape], list(DECODE_VARIANTS), [dtype], batches, self.device, self.rounds)
        return Stage("decode", f"decoding at {shape.size}, {dtype}, batch {', '.join(map(str, batches))}", seconds, run)
