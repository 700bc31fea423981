"""What an ablation is called over a figure, and what its axis is called: words for the names that recipes use."""

from __future__ import annotations

import math
from collections.abc import Callable

from comt_cli.recipe.schema import AblationName

QUESTIONS: dict[AblationName, str] = {
    "hidden-size": "Modulators of different widths",
    "window-ratio": "Sliding-window modulators with fewer and more hidden channels",
    "modules": "Gates on a part of the projections",
    "granularity": "One factor for a token or one for each channel, per projection or per path",
    "context": "Gates that see their input against learned constants",
    "sigmoid": "A learnable sigmoid against a fixed one",
    "gate-form": "Forms of the scaling gate",
    "gate-start": "Self-Adaptive Scaling started at different shares of the branch",
    "placement-norm": "Gates with the norm before and behind the residual addition",
    "residual-norm": "Norms of the third term of Self-Adaptive Scaling",
    "cost": "The gain against the cost in parameters",
}

_OPTIONS: dict[str, str] = {
    "hidden": "modulator width h",
    "rank": "modulator rank r",
    "ratio": "input channels to a hidden channel",
    "beta_bias": "share of the branch at the start",
    "sites": "projections that carry a gate",
    "gate": "form of the gate",
    "norm": "norm of the third term",
}
COST_WORDS = "parameters beyond the plain model, %"


def _sigmoid(bias: float) -> float:
    # an exponent of a float overflows beyond this; the share is 0 or 1 there
    return 1 / (1 + math.exp(-max(min(bias, 700.0), -700.0)))


SHARES: dict[str, Callable[[float], float]] = {"beta_bias": _sigmoid}
"""Options whose value is less readable than the share, from 0 to 1, that it amounts to."""


def axis_words(option: str | None) -> str:
    """What the axis of an ablation's option is called; nothing where rows differ by no single option: their names say
    it."""
    if option is None:
        return ""
    return _OPTIONS.get(option, option.replace("_", " "))


def row_words(row: str) -> str:
    """A row's name, as it is on an axis: `only qk` for `only_qk`."""
    return row.replace("_", " ")
