"""What each metric is called, and in what its differences are told: the one place that decides it."""

from __future__ import annotations

from dataclasses import dataclass

from comt_cli.recipe.schema import MetricName


@dataclass(frozen=True)
class Unit:
    """The unit of a difference to the baseline.

    `name` ends the CSV's keys (`difference_percent`), `sign` stands in headings, `spoken` after a number in a sentence.
    A relative one is 100 (x / b - 1), the other x - b.
    """

    name: str
    sign: str
    spoken: str
    is_relative: bool

    def paired(self, baseline: str) -> str:
        """How differences over several seeds are taken (`statistics.paired_difference`), as a part of a sentence."""
        if self.is_relative:
            return (
                f"ratios to {baseline} in per cent (geometric mean), with the 95 % interval of Student's t on their "
                "logarithms"
            )
        return f"in percentage points (pts) against {baseline}, with the 95 % interval of Student's t"


PERCENT = Unit("percent", "%", "%", is_relative=True)
POINTS = Unit("points", "pts", "points", is_relative=False)
"""Of a share of the samples: `0.25 points higher` is 91.37 % beside 91.12 %, as papers tell differences of accuracy."""


@dataclass(frozen=True)
class Metric:
    """`words` tell it in a sentence, `label` on an axis."""

    words: str
    label: str
    unit: Unit


METRICS: dict[MetricName, Metric] = {
    "perplexity": Metric("validation perplexity", "validation perplexity", PERCENT),
    "galore_perplexity": Metric(
        "validation perplexity as the original scripts print it",
        "validation perplexity as the original scripts print it",
        PERCENT,
    ),
    "accuracy": Metric("top-1 accuracy on the validation images in per cent", "top-1 accuracy, %", POINTS),
}
