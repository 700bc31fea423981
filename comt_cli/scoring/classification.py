"""GLUE's metrics, times 100, as papers print them. Equal to those of scikit-learn and SciPy where these are defined.

Shapes: N examples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def classification_scores(
    predictions: ArrayLike, targets: ArrayLike, measures: Sequence[str]
) -> Mapping[str, float | str]:
    """The metrics of these names ("accuracy", "f1" of class 1, "mcc", "pearson", "spearman"), or the reason why one has
    no value. `predictions` and `targets`, [N], are classes from 0, or numbers for the two correlations."""
    said, true = np.asarray(predictions), np.asarray(targets)
    if said.shape != true.shape or said.ndim != 1 or not said.size:
        raise ValueError(f"predictions {said.shape} of targets {true.shape}")
    found = {name: _MEASURES[name](said, true) for name in measures}
    return {name: value if isinstance(value, str) else 100 * value for name, value in found.items()}


def _accuracy(said_N: NDArray[Any], true_N: NDArray[Any]) -> float:
    return float(np.mean(said_N == true_N))


def _f1(said_N: NDArray[Any], true_N: NDArray[Any]) -> float | str:
    named = int(np.count_nonzero(said_N == 1) + np.count_nonzero(true_N == 1))
    if not named:
        return "undefined: class 1 is neither predicted nor right anywhere"
    return 2 * int(np.count_nonzero((said_N == 1) & (true_N == 1))) / named


def _matthews(said_N: NDArray[Any], true_N: NDArray[Any]) -> float:
    """Matthews' correlation of any number of classes (Gorodkin 2004); 0 if only one class is predicted, or occurs."""
    classes, both = np.unique(np.concatenate([said_N, true_N]), return_inverse=True)
    one_hot_NC = np.eye(len(classes))[both.reshape(2, -1)]
    centred = one_hot_NC - one_hot_NC.mean(axis=1, keepdims=True)
    (xx, xy), (_, yy) = np.einsum("anc,bnc->ab", centred, centred)
    is_constant = any(len(np.unique(each)) == 1 for each in (said_N, true_N))
    return 0.0 if is_constant else float(np.clip(xy / np.sqrt(xx * yy), -1, 1))


def _pearson(said_N: NDArray[Any], true_N: NDArray[Any]) -> float | str:
    if not np.isfinite(said_N).all():
        return "undefined: a prediction is not finite"
    for each_N, what in ((said_N, "prediction"), (true_N, "target")):
        if (each_N == each_N[0]).all():
            return f"undefined: every {what} is the same"
    return float(np.corrcoef(said_N, true_N)[0, 1])


def _spearman(said_N: NDArray[Any], true_N: NDArray[Any]) -> float | str:
    from scipy.stats import rankdata  # equal values have the mean of their ranks

    ranked_N = rankdata(said_N) if np.isfinite(said_N).all() else said_N  # values that are not finite are refused
    return _pearson(ranked_N, rankdata(true_N))


_MEASURES: Mapping[str, Callable[[NDArray[Any], NDArray[Any]], float | str]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "mcc": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
