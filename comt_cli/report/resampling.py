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
    seeds, and items for all of them at once (Owen 2007, Ann. Appl. Stat. 1, 386-411), None of a single item; and the
    degrees of freedom for Student's t, by Satterthwaite.

    V is the variance of the resamples, V_s = s^2 / n that part of it that is between seeds: V^2 / (V_s^2 / (n - 1) +
    (V - V_s)^2 / (m - 1)) is n - 1 where seeds decide, and m - 1 where items do. Of one seed only items are drawn.
    """
    (n, m), whole_N = sides_NM[0].shape, statistic(*(side.sum(1) / weights_M.sum() for side in sides_NM))
    if m < 2:
        return float(whole_N.mean()), None, 0.0
    resamples = max(200, min(1000, 10_000_000 // m))
    items_BM = _shares(m, resamples, 1)
    drawn_BN = statistic(*((items_BM @ side.T) / (items_BM @ weights_M)[:, None] for side in sides_NM))
    variance = float((_shares(n, resamples, 2) * drawn_BN).sum(1).var(ddof=1))
    of_seeds = float(whole_N.var(ddof=1)) / n if n > 1 else 0.0
    parts = of_seeds**2 / max(n - 1, 1) + max(variance - of_seeds, 0.0) ** 2 / (m - 1)
    return float(whole_N.mean()), math.sqrt(variance), variance**2 / parts if parts else math.inf


def bootstrap_difference(statistic: Statistic, unit: DifferenceUnit, weights_M: Any, *ours_base_NM: Any) -> Paired:
    """The mean difference of a statistic to the baseline's, paired by seed and item, and mean +- t(0.975, df) standard
    errors (`spread`), as `paired_difference` gives them. Of one seed, too, where the ends are over items alone."""
    import numpy as np
    from scipy.special import stdtrit

    def apart(ours: Any, base: Any) -> Any:
        one, other = statistic(ours), statistic(base)
        return np.log(one) - np.log(other) if unit.is_relative else one - other

    mean, error, freedom = spread(apart, weights_M, *ours_base_NM)
    if error is None:
        return Paired(told(mean, unit), None, None, len(ours_base_NM[0]))
    margin = float(stdtrit(freedom, 1 - ALPHA / 2)) * error if error else 0.0
    return Paired(told(mean, unit), told(mean - margin, unit), told(mean + margin, unit), len(ours_base_NM[0]))
