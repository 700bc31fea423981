"""Standard errors and paired differences over seeds and items: n seeds, m items, B resamples. Every seed of a row and
of the baseline has answered the same items."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from comt_cli.report.statistics import ALPHA, Paired, told
from comt_cli.tasks.base import DifferenceUnit

Statistic = Callable[..., Any]
"""From means over items, an array [..., n] of each side, to the number of each seed, [..., n]."""


@functools.lru_cache(maxsize=2)  # of a table's seeds, and of a task's items
def _shares(count: int, resamples: int, stream: int) -> Any:
    """Shares of `count` things in resamples [B, count] of count - 1 draws with replacement, so that the variance of a
    mean is s^2 / count, and not too small by 1 / count (McCarthy and Snowden 1985)."""
    import numpy as np

    if count < 2:
        return np.ones((resamples, count))
    drawn = np.random.default_rng([stream, count]).multinomial(count - 1, np.full(count, 1 / count), size=resamples)
    return drawn / (count - 1)


def spread(statistic: Statistic, weights_M: Any, *sides_NM: Any) -> tuple[float, float | None, float]:
    """The mean over seeds of the statistic of sum(values) / sum(weights); its standard error by a bootstrap that draws
    seeds, and items for all of them at once (Owen 2007, Ann. Appl. Stat. 1, 386-411), None of a single item; and half
    the width of its 95 % interval.

    V is the variance of the resamples, and V_s = s^2 / n that part of it that is between seeds. Student's t is the mean
    of those with n - 1 and m - 1 degrees of freedom, weighted by V_s and V - V_s (Cochran 1964, Biometrics 20,
    191-195). Of one seed only items are drawn.
    """
    from scipy.special import stdtrit

    (n, m), whole_N = sides_NM[0].shape, statistic(*(side.sum(1) / weights_M.sum() for side in sides_NM))
    if m < 2:
        return float(whole_N.mean()), None, 0.0
    resamples = max(200, min(1000, 10_000_000 // m))
    items_BM = _shares(m, resamples, 1)
    drawn_BN = statistic(*((items_BM @ side.T) / (items_BM @ weights_M)[:, None] for side in sides_NM))
    variance = float((_shares(n, resamples, 2) * drawn_BN).sum(1).var(ddof=1))
    of_seeds = min(float(whole_N.var(ddof=1)) / n, variance) if n > 1 else 0.0
    by_seeds, by_items = (float(stdtrit(max(count - 1, 1), 1 - ALPHA / 2)) for count in (n, m))
    error = math.sqrt(variance)
    half = (by_seeds * of_seeds + by_items * (variance - of_seeds)) / error if error else 0.0
    return float(whole_N.mean()), error, half


def bootstrap_difference(statistic: Statistic, unit: DifferenceUnit, weights_M: Any, *ours_base_NM: Any) -> Paired:
    """The mean difference of a statistic, a logarithm where the unit is relative, to the baseline's, paired by seed and
    item, and its interval (`spread`), as `paired_difference` gives them. Of one seed the ends are over items alone."""
    mean, error, half = spread(lambda ours, base: statistic(ours) - statistic(base), weights_M, *ours_base_NM)
    low, high = (None if error is None else told(end, unit) for end in (mean - half, mean + half))
    return Paired(told(mean, unit), low, high, len(ours_base_NM[0]))
