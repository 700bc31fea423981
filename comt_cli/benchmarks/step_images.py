"""How long one training step of an image classifier takes, each variant as a ratio to the best plain one measured in
the same run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from comt_cli.benchmarks.image_roofline import predicted_image_step_ratio
from comt_cli.benchmarks.image_shapes import ImageShape, image_goals_of
from comt_cli.benchmarks.image_variants import BEST_PLAIN, OPTIONAL, PEER, ImageWorkshop, is_compiled
from comt_cli.benchmarks.origin import origin_on
from comt_cli.benchmarks.rounds import ratio
from comt_cli.benchmarks.shapes import goal_device
from comt_cli.benchmarks.step_turns import CompileWhat, Timed, steps_in_turns
from comt_cli.models.build import empty_network, wiring_of
from comt_cli.models.flops import flops_per_sample
from comt_cli.recipe.settings import Precision
from comt_cli.training.devices import device_name, peak_flops


@dataclass(frozen=True)
class ImageMeasurement:
    """One variant. Times in milliseconds (median, and the 10th and 90th percentile); ratios are medians over rounds of
    the ratio within a round. `forward` is training's, without gradients, loss included. `saved` is what a forward pass
    keeps for the backward pass, `peak` the most that a step takes beyond weights and moments (CUDA only). `mfu` counts
    the plain model's FLOPs, whatever the variant. The goal of the ratio is at most, that of images at least."""

    device: str
    device_type: str
    shape: str
    size: str
    precision: str
    variant: str
    rounds: int
    step_ms: float
    step_ms_p10: float
    step_ms_p90: float
    images_per_second: float
    mfu: float | None
    best_plain: str | None
    step_ratio_to_best_plain: float | None
    step_ratio_to_torchvision: float | None
    best_plain_forward: str | None
    forward_ms: float
    forward_ratio_to_best_plain: float | None
    saved_mib: float | None
    saved_ratio_to_plain: float | None
    peak_mib: float | None
    predicted_step_ratio: float | None
    goal_step_ratio: float | None
    goal_images_per_second: float | None
    compiled: str
    torch: str
    triton: str | None
    git_commit: str | None


def run_image_step_benchmark(
    shape: ImageShape,
    precision: Precision,
    variants: Sequence[str],
    device: torch.device,
    rounds: int,
    compile_what: CompileWhat = "whole",
) -> Iterator[str | list[ImageMeasurement]]:
    """Measure `variants` on `device`; yields lines that say what is going on, and last the measurements.

    Where a batch does not fit in the device's memory it is halved for all; uncompiled modulators and torchvision's
    network are left out instead. A variant that fails is told (`Failed`), and the others go on.
    """

    def workshop(shape: ImageShape) -> ImageWorkshop:
        return ImageWorkshop(shape, precision, device, compile_what)

    for news in steps_in_turns(shape, precision, variants, OPTIONAL, workshop, device, rounds):
        yield news if isinstance(news, str) else _measurements(news, precision, device, compile_what)


def _measurements(
    timed: Timed[ImageShape], precision: Precision, device: torch.device, compile_what: str
) -> list[ImageMeasurement]:
    shape, origin = timed.shape, origin_on(device)
    peak = peak_flops(device, precision)
    plain = empty_network(shape.model(), wiring_of({"name": "addition"}), **shape.dimensions())
    flops = flops_per_sample(plain) * shape.batch if peak else 0
    rows = []
    for name in timed.variants:
        seconds, numbers = timed.step[name].median, timed.numbers(name, BEST_PLAIN)
        where = goal_device(device.type, origin.device)
        goals = image_goals_of(name, str(shape), shape.size, where, precision, numbers["best_plain"])
        rows.append(
            ImageMeasurement(
                device=device_name(device),
                device_type=device.type,
                shape=str(shape),
                size=shape.size,
                precision=precision,
                variant=name,
                **numbers,
                images_per_second=round(shape.batch / seconds, 1),
                mfu=round(flops / seconds / peak, 4) if peak else None,
                step_ratio_to_torchvision=ratio(timed.step, name, PEER),
                predicted_step_ratio=predicted_image_step_ratio(device_name(device), shape, precision, name),
                goal_step_ratio=goals.step,
                goal_images_per_second=goals.images_per_second,
                compiled="no" if not is_compiled(name) else "whole" if name.startswith(PEER) else compile_what,
                torch=origin.torch,
                triton=origin.triton,
                git_commit=origin.git_commit,
            )
        )
    return rows
