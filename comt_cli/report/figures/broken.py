"""A broken axis: what lies far from everything else stands in a strip of its own beyond the frame, with its value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation, blended_transform_factory
from numpy.typing import NDArray

GAP = 0.045
"""Inches between the frame and the strip, in which the axis is broken off."""
LEVEL = 0.15
"""Inches of a line of marks in a strip."""
_TAIL = 1 / 3
"""At most such a share of the values may be off the scale, together."""
_DISTANCE = 0.5
"""What is off the scale is farther from the rest than so many times the span of the rest."""
_DWARFS = 2.0
"""What is nearer to the rest than others that are off the scale is off it too if it is farther than so many times."""


@dataclass(frozen=True)
class Ends:
    """The least and the greatest value on the scale; what is below or above stands on a broken axis."""

    low: float
    high: float

    def is_off(self, value: float) -> bool:
        """Whether a value is beyond either end."""
        return not self.low <= value <= self.high


def robust_ends(values: Sequence[float] | NDArray[Any], *, log: bool = False) -> Ends:
    """The ends of a scale that a few outliers do not rule.

    From either side at most a third of the values is left out, and only what a gap parts from the others that is wider
    than half of what those span: of values that run on evenly none is.
    """
    given = np.sort(np.asarray(values, dtype=float))
    given = given[np.isfinite(given) & ((given > 0) if log else True)]
    if not given.size:
        return Ends(0.0, 1.0)
    seen = np.log(given) if log else given
    least = 1e-3 * (1.0 if log else float(np.abs(seen).max()))  # rounding noise is no gap
    most = int(len(seen) * _TAIL)
    above = _tail(-seen[::-1], most, least)
    below = _tail(seen[: len(seen) - above], most - above, least)
    return Ends(float(given[below]), float(given[-1 - above]))


def _tail(rising: NDArray[Any], most: int, least: float) -> int:
    """How many of the first values, at most so many, are far from the others: those before the first gap that is wide
    enough; more of them only where the next gap dwarfs what would be left."""
    tail = 0
    for cut in range(1, most + 1):
        gap, span = rising[cut] - rising[cut - 1], rising[-1] - rising[cut]
        if gap > least and gap > (_DWARFS if tail else _DISTANCE) * span:
            tail = cut
    return tail


def height(levels: int) -> float:
    """Inches of a strip with so many lines, the gap included; 0 without any."""
    return GAP + LEVEL * levels + 0.03 if levels else 0.0


def strip(axes: Axes, levels: int, *, above: bool = True) -> Axes:
    """A strip of `levels` lines beyond the upper, or the lower, end of a panel's axis; it has the panel's x-axis.

    Its own y-axis counts the lines, 0 the nearest to the frame. Two slanted strokes part it from the panel.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    edge = ScaledTranslation(0, 1 if above else 0, axes.transAxes)  # type: ignore[arg-type]
    inches = blended_transform_factory(axes.transAxes, figure.dpi_scale_trans + edge)
    tall = height(levels) - GAP
    bounds = (0.0, GAP if above else -GAP - tall, 1.0, tall)
    beyond: Axes = axes.inset_axes(bounds, transform=inches, sharex=axes)
    beyond.set_ylim(-0.6, levels - 0.4)
    if not above:
        beyond.invert_yaxis()
    beyond.set_yticks([])
    beyond.grid(visible=False, axis="y")
    beyond.tick_params(bottom=False, labelbottom=False, which="both")
    beyond.spines["bottom"].set_visible(False)
    stroke: dict[str, Any] = {
        "marker": [(-1, -0.5), (1, 0.5)], "markersize": 5, "linestyle": "none", "color": "black",
        "markeredgewidth": 0.7, "clip_on": False, "zorder": 5,
    }  # fmt: skip
    axes.plot([0], [1 if above else 0], transform=axes.transAxes, **stroke)
    beyond.plot([0], [0 if above else 1], transform=beyond.transAxes, **stroke)
    beyond.set_label("off the scale")
    return beyond
