"""Standard errors and paired differences of task metrics, over seeds and items at once.

n seeds, m items, B replicates. Every seed of a row and of the baseline has answered the same items.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from comt_cli.report.statistics import ALPHA, Paired, told
from comt_cli.tasks.base import DifferenceUnit

Floats: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[..., Any]
"""From the means over items of each side, [..., n], to one number a seed, [..., n]."""
_MOST, _LEAST, _NUMBERS = 1000, 200, 10_000_000


@functools.lru_cache(maxsize=2)  # a table asks for those of its seeds and of one task's items again and again
def _shares(count: int, replicates: int, stream: int) -> Floats:
    """Shares of `count` things in resamples, [B, count]: count - 1 are drawn with replacement, so that the variance of
    a mean comes out as s^2 / count, and not too small by 1 / count (McCarthy and Snowden 1985)."""
    if count < 2:
        return np.ones((replicates, count))
    drawn = np.random.default_rng([stream, count]).multinomial(count - 1, np.full(count, 1 / count), size=replicates)
    return drawn / (count - 1)


def spread(statistic: Statistic, weights_M: Floats, *sides_NM: Floats) -> tuple[float, float | None, float]:
    """The mean of a statistic over seeds; its standard error by a bootstrap that draws seeds, and items for all of them
    at once (Owen 2007, Ann. Appl. Stat. 1, 386-411, for the crossed design); and degrees of freedom for Student's t.

    The variance of the replicates is V. Of it V_s = s^2 / n is that between seeds. By Satterthwaite the degrees of
    freedom are V^2 / (V_s^2 / (n - 1) + (V - V_s)^2 / (m - 1)): n - 1 where seeds decide, m - 1 where items do.
    With one seed only items are drawn. The error is None of a single item.
    """
    n, m = sides_NM[0].shape
    whole_N = statistic(*(side.sum(1) / weights_M.sum() for side in sides_NM))
    mean = float(whole_N.mean())
    if m < 2:
        return mean, None, 0.0
    replicates = max(_LEAST, min(_MOST, _NUMBERS // m))
    items_BM, seeds_BN = _shares(m, replicates, 1), _shares(n, replicates, 2)
    drawn_BN = statistic(*((items_BM @ side.T) / (items_BM @ weights_M)[:, None] for side in sides_NM))
    variance = float((seeds_BN * drawn_BN).sum(1).var(ddof=1))
    of_seeds = float(whole_N.var(ddof=1)) / n if n > 1 else 0.0
    parts = of_seeds**2 / max(n - 1, 1) + max(variance - of_seeds, 0.0) ** 2 / (m - 1)
    return mean, math.sqrt(variance), variance**2 / parts if parts else math.inf


def item_error(statistic: Statistic, weights_M: Floats, values_M: Floats) -> float | None:
    """The jackknife's standard error of one model's metric over items, s / sqrt(m) of a mean; None of one item."""
    if len(values_M) < 2:
        return None
    without_M = statistic((values_M.sum() - values_M) / (weights_M.sum() - weights_M))
    return math.sqrt(float(without_M.var()) * (len(values_M) - 1))


def bootstrap_difference(
    statistic: Statistic, unit: DifferenceUnit, weights_M: Floats, ours_NM: Floats, baseline_NM: Floats
) -> Paired:
    """The mean difference of a metric to the baseline, paired by seed and by item, and mean +- t(0.975, df) standard
    errors (`spread`), in the unit: points are differences of `statistic`; a relative difference is the log ratio, given
    as 100 (exp(.) - 1). There are ends for one seed too: they are over items alone."""
    from scipy.special import stdtrit

    def apart(ours: Any, baseline: Any) -> Any:
        one, other = statistic(ours), statistic(baseline)
        return np.log(one) - np.log(other) if unit.is_relative else one - other

    mean, error, freedom = spread(apart, weights_M, ours_NM, baseline_NM)
    if error is None:
        return Paired(told(mean, unit), None, None, len(ours_NM))
    margin = float(stdtrit(freedom, 1 - ALPHA / 2)) * error if error else 0.0
    return Paired(told(mean, unit), told(mean - margin, unit), told(mean + margin, unit), len(ours_NM))
