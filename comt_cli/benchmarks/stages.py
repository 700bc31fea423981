"""Everything worth measuring on a device, the most wanted first, as much of it as a given time allows.

The seconds of the stages were measured on a CPU of two cores. For CUDA they are guesses until a first run on a GPU:
of training steps from what is predicted of each size, so that what one size took says what the next will take.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from comt_cli.benchmarks.decode import BATCHES, run_decode_benchmark
from comt_cli.benchmarks.decode_translation import run_translation_benchmark
from comt_cli.benchmarks.failures import Failed, failed
from comt_cli.benchmarks.kernels import run_gemm_benchmark, run_kernel_benchmark
from comt_cli.benchmarks.limits import Deadline
from comt_cli.benchmarks.names import DECODE_VARIANTS, GATES, OPS, TRANSLATION_VARIANTS
from comt_cli.benchmarks.roofline import PREDICTED, Roofline
from comt_cli.benchmarks.rounds import GoOn
from comt_cli.benchmarks.shapes import LLAMAS, Shape
from comt_cli.benchmarks.step import run_step_benchmark
from comt_cli.benchmarks.subjects import (
    IMAGES,
    LANGUAGE,
    NONDETERMINISTIC,
    SUBJECTS,
    TRANSLATION,
    Subject,
    needs_cuda,
    subject_of,
)
from comt_cli.benchmarks.variants import CompileWhat, is_compiled
from comt_cli.recipe.settings import Precision

News = str | list[Any]
WANTED_STEPS: dict[tuple[str, str], tuple[str, ...]] = {
    ("step", "cuda"): (
        "transformers-compiled",
        "plain-compiled",
        NONDETERMINISTIC,
        "plain-compiled-graphs",
        "plain-fused",
        "comt-fused",
        "transponder-compiled",
        "transponder-fused",
        "transponder-fused-graphs",
    ),
    ("step-images", "cuda"): tuple(name for name in IMAGES.variants if name != "torchvision"),
    ("step-images", "cpu"): (
        "plain",
        "plain-compiled",
        "plain-fused-eager",
        "window-eager",
        "window-fused-eager",
        "pixel-eager",
        "pixel-fused-eager",
    ),
}
"""The steps that goals are about, what they are compared with, and the pairs that `train.kernels: auto` compares, by
page and kind of device; all variants where nothing stands here. `comt bench step` measures the others too. Of a ResNet
on a CPU, where a compiled step takes up to a minute to build, all but one are uncompiled, as training there is. On CUDA
another library's compiled network, which is one graph and takes minutes where it is deep, has the first size alone."""
WANTED_DECODING = ("plain", "plain-fused", "comt-fused", "transponder-fused")
_BUILDING = 15
"""Seconds to compile a variant on CUDA, of any size, since all blocks share their code."""
_TURN = 2
"""Predicted plain steps that a turn takes: a step and a pass forward of some variant, below full speed."""
_FIRST_TURNS = 4
"""What else runs of a variant, in turns: to warm up, to count its memory."""
_STEP_SECONDS = {"mt-bench": 200}
_GUESS = 120
"""Of other sizes that nothing is predicted of."""


@dataclass(frozen=True)
class Stage:
    """A part of `comt bench all`: how many seconds it is likely to take, and what does it, which asks whether there is
    time left, and ends soon where not: the whole time is not up, nor `most` seconds. `kind` names the file that its
    rows go to."""

    kind: str
    what: str
    seconds: float
    run: Callable[[GoOn], Iterator[News]]
    most: float | None = None


def reach(stages: Sequence[Stage], seconds: float) -> str:
    """How many of the stages so many seconds are likely to reach, and how long all of them take, in words."""
    ends = list(itertools.accumulate(stage.seconds for stage in stages))
    inside = bisect.bisect_right(ends, seconds)
    last = f", the last of them: {stages[inside - 1].what}" if inside else ""
    every = math.ceil(ends[-1] / 60)
    return f"{seconds / 60:g} minutes are likely to reach {inside} of {len(stages)} parts{last}; all take about {every}"


class _Allowance:
    """Tells a stage whether more than `end` seconds are left, and remembers whether it ever said no."""

    def __init__(self, deadline: Deadline, end: float) -> None:
        self._deadline, self._end, self.said_no = deadline, end, False

    def __call__(self) -> bool:
        may = self._deadline.left() > self._end
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
        allowance = _Allowance(deadline, 0.0 if stage.most is None else max(0.0, left - stage.most))
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
    """What there is to measure on a device, in the order in which it is wanted."""
    return _on_cuda(device, rounds) if device.type == "cuda" else _on_cpu(device, rounds)


def _on_cuda(device: torch.device, rounds: int) -> list[Stage]:
    """First what the goals are about, of which what is not a step may not take longer than estimated, then the rest.
    One block is compiled for all: 24 layers as one graph take minutes."""
    make = _Makers(device, rounds, WANTED_DECODING)
    sizes = {size: LLAMAS[size] for size in LANGUAGE.gpu_sizes}
    ends, between = (1, 64), (4, 16)
    steps = {size: make.step(subject.shapes[size]) for subject in SUBJECTS for size in subject.default_sizes("cuda")}
    first = [*LANGUAGE.gpu_sizes, IMAGES.gpu_sizes[0]]
    wanted = [
        make.gemm(list(sizes.values()), ["bf16"], 15),
        make.kernels(sizes["60m"], "bf16", 90),
        *(steps[size] for size in first),
        make.decoding(sizes["60m"], "bf16", 30, ends),
        *(steps[size] for size in LANGUAGE.host_bound),
    ]
    return [
        *(replace(stage, most=stage.seconds if stage.kind in ("kernels", "decode") else None) for stage in wanted),
        *(stage for size, stage in steps.items() if size not in (*first, *LANGUAGE.host_bound)),
        make.translating(TRANSLATION.shapes["base"], "fp32", 60),
        make.decoding(sizes["350m"], "bf16", 40, ends),
        make.kernels(sizes["1b"], "bf16", 90),
        *(make.decoding(sizes[size], "bf16", 45, ends) for size in ("130m", "250m", "1b")),
        *(make.kernels(sizes[size], "bf16", 90) for size in ("130m", "250m", "350m")),
        *(make.decoding(shape, "bf16", 45, between) for shape in sizes.values()),
        make.kernels(sizes["60m"], "fp32", 90),
    ]


def _on_cpu(device: torch.device, rounds: int) -> list[Stage]:
    """First as much of everything as nine minutes are likely to hold, then the rest."""
    make = _Makers(device, rounds, tuple(DECODE_VARIANTS))
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


def _step_seconds(shape: Shape, variants: Sequence[str], rounds: int) -> float:
    """Seconds that it is likely to take to build the variants of a step and to time them: of networks with a predicted
    step those on an H200, of others a guess."""
    plain = _predicted_seconds(shape.size)
    if plain is None:
        return _STEP_SECONDS.get(shape.size, _GUESS)
    running = len(variants) * (rounds + _FIRST_TURNS) * _TURN * plain
    return _BUILDING * sum(map(is_compiled, variants)) + running


@functools.cache
def _predicted_seconds(size: str) -> float | None:
    """Of a plain step; None where nothing is predicted."""
    subject = subject_of(size)
    if subject.page not in PREDICTED:
        return None
    roofline: Roofline = PREDICTED[subject.page].model.roofline_of(subject.shapes[size])
    return roofline.plain()[0]


@dataclass(frozen=True)
class _Makers:
    """What makes a stage of each kind for one device."""

    device: torch.device
    rounds: int
    decoders: Sequence[str]

    def gemm(self, shapes: list[Shape], dtypes: list[str], seconds: float) -> Stage:
        run = partial(run_gemm_benchmark, shapes, dtypes, self.device, self.rounds)
        return Stage("kernels", "matrix products at all sizes", seconds, run)

    def kernels(self, shape: Shape, dtype: str, seconds: float) -> Stage:
        run = partial(run_kernel_benchmark, [shape], list(OPS), list(GATES), [dtype], self.device, self.rounds)
        return Stage("kernels", f"kernels at {shape.size}, {dtype}", seconds, run)

    def step(self, shape: Shape, precision: Precision | None = None, seconds: float | None = None) -> Stage:
        subject, kind = subject_of(shape.size), self.device.type
        chosen = precision or subject.precision
        wanted = WANTED_STEPS.get((subject.page, kind), tuple(subject.variants))
        there = [name for name in subject.variants_of(shape.size) if kind == "cuda" or not needs_cuda(name)]
        variants = tuple(name for name in wanted if name in there)
        if kind == "cuda" and shape.size != subject.gpu_sizes[0]:
            variants = tuple(name for name in variants if not (subject.is_peer(name) and is_compiled(name)))

        def run(go_on: GoOn) -> Iterator[News]:
            what: CompileWhat = "block" if kind == "cuda" else "whole"
            return run_step_benchmark(shape, chosen, variants, self.device, self.rounds, what, go_on)

        seconds = seconds or _step_seconds(shape, variants, self.rounds)
        return Stage(subject.page, f"{subject.stage} at {shape.size}, {chosen}", seconds, run)

    def translating(self, shape: Shape, dtype: str, seconds: float) -> Stage:
        names, batches = list(TRANSLATION_VARIANTS), (1, 16)
        run = partial(run_translation_benchmark, [shape], names, [dtype], batches, self.device, self.rounds)
        return Stage("decode-translation", f"translating at {shape.size}, {dtype}", seconds, run)

    def decoding(self, shape: Shape, dtype: str, seconds: float, batches: Sequence[int]) -> Stage:
        run = partial(run_decode_benchmark, [shape], self.decoders, [dtype], batches, self.device, self.rounds)
        return Stage("decode", f"decoding at {shape.size}, {dtype}, batch {', '.join(map(str, batches))}", seconds, run)
