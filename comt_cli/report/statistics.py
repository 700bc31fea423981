"""Mean, standard error, and the paired difference to a baseline with its interval. Plain Python: n is a handful."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from comt_cli.tasks.base import DifferenceUnit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """Mean over n seeds and its standard error, s / sqrt(n) with the sample deviation s, None for one seed; and the
    median."""

    mean: float
    stderr: float | None
    n: int
    median: float | None = None


@dataclass(frozen=True)
class Paired:
    """Difference to the baseline over the n seeds both have, in the metric's unit of differences (`paired_difference`).

    `low` and `high` bound the 95 % interval of Student's t with n - 1 degrees of freedom; None for one seed.
    """

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies wholly on one side of zero. One seed has no interval."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def summarise(values: Sequence[float]) -> Summary | None:
    """Mean, standard error, n and median; None for no values."""
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Summary(mean, None, 1, mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return Summary(mean, math.sqrt(variance / n), n, statistics.median(values))


def paired_difference(ours: Mapping[int, float], baseline: Mapping[int, float], unit: DifferenceUnit) -> Paired | None:
    """Mean over common seeds s of d_s, and mean +- t(0.975, n - 1) times its standard error.

    Pairing by seed takes out what the seeds share: the same order of samples, and the same initial weights.

    Points are d_s = ours - baseline. A relative difference is d_s = log(ours / baseline), of which mean and ends are
    given as 100 (exp(.) - 1): the geometric mean of the ratios, and an interval that cannot go below -100 %. Of
    perplexities, d_s is the difference of the losses in nats.

    None where there is no common seed, or a number that is not finite, or no ratio since one is not positive.
    """
    pairs = [(ours[seed], baseline[seed]) for seed in sorted(ours.keys() & baseline.keys())]
    if not all(_can_be_compared(number, unit) for pair in pairs for number in pair):
        return None
    apart = [math.log(value) - math.log(other) if unit.is_relative else value - other for value, other in pairs]
    summary = summarise(apart)
    if summary is None:
        return None
    if summary.stderr is None:
        return Paired(_told(summary.mean, unit), None, None, 1)
    margin = student_t(0.5 + CONFIDENCE / 2, summary.n - 1) * summary.stderr
    mean, low, high = (_told(each, unit) for each in (summary.mean, summary.mean - margin, summary.mean + margin))
    return Paired(mean, low, high, summary.n)


def difference(value: float | None, baseline: float | None, unit: DifferenceUnit) -> float | None:
    """100 (value / baseline - 1), or value - baseline where the unit is points.

    None where one of them is missing, and where there is no ratio since one is not positive.
    """
    if value is None or baseline is None or not (_can_be_compared(value, unit) and _can_be_compared(baseline, unit)):
        return None
    return 100 * (value - baseline) / baseline if unit.is_relative else value - baseline


def _can_be_compared(number: float, unit: DifferenceUnit) -> bool:
    return math.isfinite(number) and (number > 0 or not unit.is_relative)


def _told(apart: float, unit: DifferenceUnit) -> float:
    # the interval of two seeds that differ much may end where no float can hold the exponential
    return 100 * math.expm1(min(apart, 700.0)) if unit.is_relative else apart


@functools.cache
def student_t(probability: float, degrees: int) -> float:
    """The t below which Student's distribution with `degrees` degrees of freedom has `probability`, in (0.5, 1).

    Found by bisection over theta = atan(t / sqrt(degrees)), in which the distribution is a finite series.

    Raises:
        ValueError: outside that range, or with fewer than one degree of freedom.
    """
    if not 0.5 < probability < 1 or degrees < 1:
        raise ValueError(f"no quantile for probability {probability} with {degrees} degrees of freedom")
    wanted = 2 * probability - 1
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        middle = (low + high) / 2
        if _central_probability(middle, degrees) < wanted:
            low = middle
        else:
            high = middle
    return math.tan((low + high) / 2) * math.sqrt(degrees)


def _central_probability(theta: float, degrees: int) -> float:
    """P(|T| < t) at theta = atan(t / sqrt(degrees)): Abramowitz and Stegun 26.7.3 (odd) and 26.7.4 (even).

    Odd: (2 / pi) (theta + sin (cos + 2/3 cos^3 + (2 4)/(3 5) cos^5 + ...)); even: sin (1 + 1/2 cos^2 +
    (1 3)/(2 4) cos^4 + ...); the last power is degrees - 2. Every term is positive, so nothing cancels.
    """
    sine, cosine = math.sin(theta), math.cos(theta)
    if degrees == 1:
        return 2 * theta / math.pi
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term
    for power in range(2 + odd, degrees - 1, 2):
        term *= (power - 1) / power * cosine**2
        total += term
    return 2 / math.pi * (theta + sine * total) if odd else sine * total
