"""What a training step and a forward pass should cost on an H200, from bytes and FLOPs alone. A prediction, no
measurement: it stands beside the measured numbers and is never one of them.

A step is a sum of parts, each as long as the slower of its memory traffic and its arithmetic. What the parts are, and
what designs of gates add to them, is in a file for each kind of network: `llama_roofline`, `resnet_roofline`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from comt_cli.benchmarks import llama_roofline, resnet_roofline
from comt_cli.benchmarks.goals import H200
from comt_cli.benchmarks.llama_roofline import Ratios
from comt_cli.benchmarks.shapes import Shape
from comt_cli.benchmarks.subjects import Subject, subject_of

DEVICE = H200
LABEL = "predicted, not measured"


class Roofline(Protocol):
    """One network on batches of one size."""

    def plain(self) -> Ratios:
        """Seconds of the step and of the forward pass without gates, everything fused that can be."""

    def ratios(self, method: str, design: str) -> Ratios | None:
        """Of the step and of the forward pass with gates to the plain ones; None where nothing is known on paper."""


class Predicted(NamedTuple):
    """What is predicted of a subject, on a page of that name: by a module's `roofline_of`, of its `METHODS` in its
    `DESIGNS`; its `SAID` is what the page says of these, its `EXTENT` the column that says how large a batch is.

    `percent` of full speed: that at which a second column has the plain step; `decimals`: of its milliseconds; `goal`:
    the goal that stands beside that of the step, a plain network's where `of_plain`.
    """

    page: str
    model: Any
    percent: int
    decimals: int
    goal: str
    of_plain: bool = False

    @property
    def variants(self) -> list[str]:
        """What is predicted, by name."""
        return [f"{method}-{design}" for method in self.model.METHODS for design in self.model.DESIGNS]


PREDICTED = {
    "step": Predicted("predicted", llama_roofline, 80, 2, "goal_forward_ratio"),
    "step-images": Predicted("predicted-images", resnet_roofline, 60, 3, "goal_images_per_second", of_plain=True),
}
"""By the subject's page. A subject that is not here has no predictions."""


def predicted_step_ratio(device: str, shape: Shape, precision: str, variant: str) -> float | None:
    """What the model says of a variant's step; None for other devices, sizes and precisions than it is made for."""
    subject = subject_of(shape.size)
    predicted = PREDICTED.get(subject.page)
    if predicted is None or device != DEVICE or shape.size not in subject.gpu_sizes or precision == "fp32":
        return None
    method, _, design = variant.partition("-")
    if method not in predicted.model.METHODS or design not in predicted.model.DESIGNS:
        return None
    ratios = predicted.model.roofline_of(shape).ratios(method, design)
    return None if ratios is None else round(ratios[0], 4)


def predictions(subject: Subject, sizes: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of every design of every method at every size; times in milliseconds, ratios to the plain step."""
    predicted = PREDICTED[subject.page]
    rows = []
    for shape in (subject.shapes[size] for size in sizes):
        roofline: Roofline = predicted.model.roofline_of(shape)
        slower: Roofline = predicted.model.roofline_of(shape, predicted.percent / 100)
        step, goals = roofline.plain()[0], functools.partial(_goals, subject, shape)
        for name in predicted.variants:
            method, _, design = name.partition("-")
            ratios = roofline.ratios(method, design)
            if ratios is None:
                continue
            own = goals(f"{method}-{design.removesuffix('-whole-tiles')}")
            beside = goals("plain") if predicted.of_plain else own
            rows.append(
                {
                    "device": DEVICE,
                    "size": shape.size,
                    predicted.model.EXTENT: {"shape": str(shape), "tokens": shape.units}[predicted.model.EXTENT],
                    "method": method,
                    "variant": name,
                    "kind": LABEL,
                    "plain_step_ms": round(1e3 * step, predicted.decimals),
                    f"plain_step_ms_at_{predicted.percent}_percent": round(1e3 * slower.plain()[0], predicted.decimals),
                    f"plain_{subject.unit}_per_second": round(shape.units / step),
                    "predicted_step_ratio": round(ratios[0], 4),
                    "predicted_forward_ratio": round(ratios[1], 4),
                    "goal_step_ratio": own["goal_step_ratio"],
                    predicted.goal: beside[predicted.goal],
                }
            )
    return rows


def _goals(subject: Subject, shape: Shape, variant: str) -> dict[str, float | None]:
    row = {"device": DEVICE, "size": shape.size, "shape": str(shape), "precision": subject.precision}
    return subject.goals(row | {"variant": variant, "best_plain": "plain"}, "cuda")
