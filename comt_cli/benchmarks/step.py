"""How long one training step of a language model takes, each variant as a ratio to the best plain one measured in the
same run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from comt_cli.benchmarks.origin import origin_on
from comt_cli.benchmarks.roofline import predicted_step_ratio
from comt_cli.benchmarks.rounds import ratio
from comt_cli.benchmarks.shapes import Shape, goal_device, goals_of
from comt_cli.benchmarks.step_turns import CompileWhat, Timed, steps_in_turns
from comt_cli.benchmarks.step_variants import BEST_PLAIN, OPTIONAL, PEER, Workshop
from comt_cli.models.build import empty_network, wiring_of
from comt_cli.models.flops import flops_per_sample
from comt_cli.recipe.settings import Precision
from comt_cli.training.devices import device_name, peak_flops


@dataclass(frozen=True)
class Measurement:
    """One variant. Times in milliseconds (median, and the 10th and 90th percentile); ratios are medians over rounds of
    the ratio within a round. `forward` has no gradients and includes the loss. `saved` is what a forward pass keeps for
    the backward pass, `peak` the most that a step takes beyond weights and moments (CUDA only). Goals are at most,
    that of `mfu` at least."""

    device: str
    shape: str
    size: str
    precision: str
    variant: str
    rounds: int
    step_ms: float
    step_ms_p10: float
    step_ms_p90: float
    tokens_per_second: float
    mfu: float | None
    best_plain: str | None
    step_ratio_to_best_plain: float | None
    step_ratio_to_transformers: float | None
    best_plain_forward: str | None
    forward_ms: float
    forward_ratio_to_best_plain: float | None
    saved_mib: float | None
    saved_ratio_to_plain: float | None
    peak_mib: float | None
    predicted_step_ratio: float | None
    goal_step_ratio: float | None
    goal_forward_ratio: float | None
    goal_saved_ratio: float | None
    goal_mfu: float | None
    compiled: str
    torch: str
    triton: str | None
    git_commit: str | None


def run_step_benchmark(
    shape: Shape,
    precision: Precision,
    variants: Sequence[str],
    device: torch.device,
    rounds: int,
    compile_what: CompileWhat = "whole",
) -> Iterator[str | list[Measurement]]:
    """Measure `variants` on `device`; yields lines that say what is going on, and last the measurements.

    Where a batch does not fit in the device's memory it is halved for all; uncompiled variants and transformers' are
    left out instead. A variant that fails is told (`Failed`), and the others go on.
    """

    def workshop(shape: Shape) -> Workshop:
        return Workshop(shape, precision, device, compile_what)

    for news in steps_in_turns(shape, precision, variants, OPTIONAL, workshop, device, rounds):
        yield news if isinstance(news, str) else _measurements(news, precision, device, compile_what)


def _measurements(
    timed: Timed[Shape], precision: Precision, device: torch.device, compile_what: str
) -> list[Measurement]:
    shape, origin = timed.shape, origin_on(device)
    rows = []
    for name in timed.variants:
        seconds = timed.step[name].median
        goals = goals_of(name, shape.size, goal_device(device.type, origin.device), precision)
        rows.append(
            Measurement(
                device=device_name(device),
                shape=str(shape),
                size=shape.size,
                precision=precision,
                variant=name,
                **timed.numbers(name, BEST_PLAIN),
                tokens_per_second=round(shape.tokens / seconds, 1),
                mfu=_mfu(name, shape, precision, device, seconds),
                step_ratio_to_transformers=ratio(timed.step, name, PEER),
                predicted_step_ratio=predicted_step_ratio(device_name(device), shape.size, precision, name),
                goal_step_ratio=goals.step,
                goal_forward_ratio=goals.forward,
                goal_saved_ratio=goals.saved,
                goal_mfu=goals.mfu,
                compiled=compile_what if name.endswith(("-compiled", "-fused")) else "no",
                torch=origin.torch,
                triton=origin.triton,
                git_commit=origin.git_commit,
            )
        )
    return rows


def _mfu(variant: str, shape: Shape, precision: Precision, device: torch.device, seconds: float) -> float | None:
    """Model FLOPs a second over the device's peak, as training counts them: matrix products, attention in full."""
    peak = peak_flops(device, precision)
    if peak is None:
        return None
    method = {"comt": "comt", "transponder": "transponder"}.get(variant.partition("-")[0], "pre-ln")
    model = empty_network(shape.model(), wiring_of({"name": method}), **shape.dimensions())
    return round(flops_per_sample(model) * shape.batch / seconds / peak, 4)
