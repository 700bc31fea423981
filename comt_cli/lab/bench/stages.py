"""Everything worth measuring on a processor, the most wanted first, as much of it as a given time allows.

The seconds of the stages were measured on two cores. What is worth measuring on a GPU is in `gpu`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from comt_cli.lab.bench.decode import decoding_cases
from comt_cli.lab.bench.kernels import kernel_cases, product_cases
from comt_cli.lab.bench.runner import Case, Deadline, Failed, News, Turns, run_cases
from comt_cli.lab.bench.step import StepCase
from comt_cli.lab.bench.tables import DECODED, GATES, IMAGES, LANGUAGE, OPS, SUBJECTS, needs_cuda, subject_of
from comt_cli.recipe.settings import Precision

WANTED_IMAGE_STEPS = (
    *("plain", "plain-compiled", "plain-fused-eager"),
    *("window-eager", "window-fused-eager", "pixel-eager", "pixel-fused-eager"),
)
"""Of a ResNet: the steps that goals are about, and the pairs that `train.kernels: auto` compares. All but one are
uncompiled, as training on a CPU is: a compiled step takes up to a minute to build."""
_STEP_SECONDS = {"bench": 115, "mt-bench": 200}
_GUESS = 120
"""Of other sizes."""


@dataclass(frozen=True)
class Stage:
    """A part of `comt bench all`, and how many seconds it is likely to take."""

    what: str
    seconds: float
    cases: Iterable[Case]


def reach(stages: Sequence[Stage], seconds: float) -> str:
    """How many of the stages so many seconds are likely to reach, and how long all of them take, in words."""
    ends = list(itertools.accumulate(stage.seconds for stage in stages))
    inside = bisect.bisect_right(ends, seconds)
    last = f", the last of them: {stages[inside - 1].what}" if inside else ""
    every = math.ceil(ends[-1] / 60)
    return f"{seconds / 60:g} minutes are likely to reach {inside} of {len(stages)} parts{last}; all take about {every}"


class _Asked(Deadline):
    """A deadline that remembers whether it was ever past when it was asked."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline, self.has_passed = deadline, False

    def left(self) -> float:
        left = self._deadline.left()
        self.has_passed |= left <= 0
        return left


def run_stages(stages: Iterable[Stage], turns: Turns) -> Iterator[News]:
    """What one stage after another yields. A line names each that is left out for want of time.

    What a stage took, compared with its estimate, corrects the estimate of the next one alike, unless it was cut short
    or failed.
    """
    pace: dict[str, float] = {}
    for stage in stages:
        alike, left = stage.what.partition(" at ")[0], turns.deadline.left()
        needs = stage.seconds * pace.get(alike, 1.0)
        if needs > left:
            time = f"about {needs:.0f} s, {max(0.0, left):.0f} s left"
            yield f"left out for want of time: {stage.what} ({time})"
            continue
        yield f"{stage.what} ({left:.0f} s left)"
        asked, has_failed = _Asked(turns.deadline), False
        for news in run_cases(stage.cases, replace(turns, deadline=asked)):
            has_failed |= isinstance(news, Failed)
            yield news
        if not asked.has_passed and not has_failed:
            pace[alike] = (left - turns.deadline.left()) / stage.seconds


def stages_for(device: torch.device) -> list[Stage]:
    """What there is to measure: first as much of everything as nine minutes are likely to hold, then the rest."""

    def kernels(size: str, dtype: str, seconds: float) -> Stage:
        cases = kernel_cases([LANGUAGE.shapes[size]], [*OPS], [*GATES], [dtype], device)
        return Stage(f"kernels at {size}, {dtype}", seconds, cases)

    def step(size: str, precision: Precision, seconds: float | None = None) -> Stage:
        subject = subject_of(size)
        wanted = WANTED_IMAGE_STEPS if subject is IMAGES else subject.variants_of(size)
        case = StepCase(subject.shapes[size], precision, [name for name in wanted if not needs_cuda(name)], device)
        return Stage(f"{subject.stage} at {size}, {precision}", seconds or _STEP_SECONDS.get(size, _GUESS), [case])

    def decoding(page: str, size: str, dtype: str, seconds: float) -> Stage:
        decoded = DECODED[page]
        cases = decoding_cases(decoded, [size], [*decoded.variants], [dtype], None, device)
        return Stage(f"{page} at {size}, {dtype}", seconds, cases)

    return [
        Stage("matrix products at all sizes", 15, product_cases([LANGUAGE.shapes["bench"]], ["fp32", "bf16"], device)),
        *(kernels("bench", dtype, 80) for dtype in ("fp32", "bf16")),
        *(step("bench", precision) for precision in LANGUAGE.default_precisions(device.type)),
        step("resnet18-b32", "bf16-mixed", 85),
        *(decoding("decode", "bench", dtype, 25) for dtype in ("fp32", "bf16")),
        step("resnet18-b32", "fp32", 130),
        *(
            step(size, precision)
            for subject in SUBJECTS
            if subject not in (LANGUAGE, IMAGES)
            for size in subject.cpu_sizes
            for precision in subject.default_precisions(device.type)
        ),
        decoding("decode-translation", "mt-bench", "fp32", 60),
        *(kernels("smoke", dtype, 60) for dtype in ("fp32", "bf16")),
    ]
