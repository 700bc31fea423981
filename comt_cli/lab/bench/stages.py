"""Everything worth measuring on a processor, the most wanted first, as much of it as a given time allows.

The seconds of the stages were measured on two cores. What is worth measuring on a GPU is in `gpu`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from comt_cli.lab.bench.decode import run_decode_benchmark
from comt_cli.lab.bench.decode_translation import run_translation_benchmark
from comt_cli.lab.bench.ending import Deadline, Failed, failed
from comt_cli.lab.bench.kernels import run_gemm_benchmark, run_kernel_benchmark
from comt_cli.lab.bench.rounds import GoOn
from comt_cli.lab.bench.step import run_step_benchmark
from comt_cli.lab.bench.subjects import (
    DECODED,
    DTYPES,
    GATES,
    IMAGES,
    LANGUAGE,
    OPS,
    SUBJECTS,
    Subject,
    needs_cuda,
)
from comt_cli.recipe.settings import Precision

News = str | list[Any]
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
    """A part of `comt bench all`: how many seconds it is likely to take, and what does it, which asks whether there is
    time left, and ends soon where not. `kind` names the file that its rows go to."""

    kind: str
    what: str
    seconds: float
    run: Callable[[GoOn], Iterator[News]]


def reach(stages: list[Stage], seconds: float) -> str:
    """How many of the stages so many seconds are likely to reach, and how long all of them take, in words."""
    ends = list(itertools.accumulate(stage.seconds for stage in stages))
    inside = bisect.bisect_right(ends, seconds)
    last = f", the last of them: {stages[inside - 1].what}" if inside else ""
    every = math.ceil(ends[-1] / 60)
    return f"{seconds / 60:g} minutes are likely to reach {inside} of {len(stages)} parts{last}; all take about {every}"


def run_stages(stages: list[Stage], deadline: Deadline) -> Iterator[tuple[str, News]]:
    """What one stage after another yields, with its kind. A line names each that is left out for want of time.

    What a stage took, compared with its estimate, corrects the estimate of the next one alike, unless it was cut short.
    A stage that fails is reported, and the next one follows.
    """
    pace: dict[str, float] = {}
    for stage in stages:
        alike, left = stage.what.partition(" at ")[0], deadline.left()
        needs = stage.seconds * pace.get(alike, 1.0)
        if needs > left:
            time = f"about {needs:.0f} s, {max(0.0, left):.0f} s left"
            yield stage.kind, f"left out for want of time: {stage.what} ({time})"
            continue
        yield stage.kind, f"{stage.what} ({left:.0f} s left)"
        answers = {True}

        def go_on(answers: set[bool] = answers) -> bool:
            answers.add(may := deadline())
            return may

        try:
            for news in stage.run(go_on):
                if isinstance(news, Failed):
                    answers.add(False)
                yield stage.kind, news
        except Exception as error:
            answers.add(False)
            yield stage.kind, failed(stage.what, error)
        if False not in answers:  # neither cut short nor failed
            pace[alike] = (left - deadline.left()) / stage.seconds


def stages_for(device: torch.device, rounds: int = 15) -> list[Stage]:
    """What there is to measure: first as much of everything as nine minutes are likely to hold, then the rest."""
    bench = LANGUAGE.shapes["bench"]
    texts, translations = DECODED["decode"], DECODED["decode-translation"]

    def kernels(size: str, dtype: str, seconds: float) -> Stage:
        of = [LANGUAGE.shapes[size]], [*OPS], [*GATES], [dtype]
        return Stage(
            "kernels", f"kernels at {size}, {dtype}", seconds, partial(run_kernel_benchmark, *of, device, rounds)
        )

    def step(subject: Subject, size: str, precision: Precision, seconds: float | None = None) -> Stage:
        wanted = WANTED_IMAGE_STEPS if subject is IMAGES else subject.variants_of(size)
        variants = [name for name in wanted if not needs_cuda(name)]
        run = partial(run_step_benchmark, subject.shapes[size], precision, variants, device, rounds, "whole")
        seconds = seconds or _STEP_SECONDS.get(size, _GUESS)
        return Stage(subject.page, f"{subject.stage} at {size}, {precision}", seconds, run)

    def decoding(dtype: str) -> Stage:
        run = partial(run_decode_benchmark, [bench], [*texts.variants], [dtype], texts.batches, device, rounds)
        what = f"decoding at {bench.size}, {dtype}, batch {', '.join(map(str, texts.batches))}"
        return Stage("decode", what, 25, run)

    gemm = partial(run_gemm_benchmark, [bench], ["fp32", "bf16"], device, rounds)
    translating = partial(
        run_translation_benchmark,
        [translations.subject.shapes["mt-bench"]],
        [*translations.variants],
        [translations.dtype],
        translations.batches,
        device,
        rounds,
    )
    types = sorted(DTYPES, reverse=True)  # fp32 first
    return [
        Stage("kernels", "matrix products at all sizes", 15, gemm),
        *(kernels("bench", dtype, 80) for dtype in types),
        *(step(LANGUAGE, "bench", precision) for precision in LANGUAGE.default_precisions(device.type)),
        step(IMAGES, "resnet18-b32", "bf16-mixed", 85),
        *(decoding(dtype) for dtype in types),
        step(IMAGES, "resnet18-b32", "fp32", 130),
        *(
            step(subject, size, precision)
            for subject in SUBJECTS
            if subject not in (LANGUAGE, IMAGES)
            for size in subject.cpu_sizes
            for precision in subject.default_precisions(device.type)
        ),
        Stage("decode-translation", "translating at mt-bench, fp32", 60, translating),
        *(kernels("smoke", dtype, 60) for dtype in types),
    ]
