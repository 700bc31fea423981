"""Axes of figures over the depth of a network: depth with its stages or stacks marked, and norms of gradients."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes

from comt_cli.report.figures.lines import log_ticks
from comt_cli.report.figures.style import QUIET, layer_axis

MARKERS = "os^Dv"
_LEAST_RATIO = 1.5
"""A logarithmic axis spans at least this ratio, so that rounding noise does not look like structure."""


def mark_groups(axes: Axes, places: Mapping[str, pd.Series]) -> None:
    """Thin lines between groups of neighbours on the x-axis, given by their places, and the groups' names on top."""
    for name, own in places.items():
        first, last = int(own.min()), int(own.max())
        if first > 1:
            axes.axvline(first - 0.5, color=QUIET, linewidth=0.6, linestyle=(0, (4, 3)), zorder=0.5)
        axes.annotate(
            name, ((first + last) / 2, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 1),
            textcoords="offset points", ha="center", va="bottom", fontsize=6.5, color=QUIET,
        )  # fmt: skip


def block_axis(axes: Axes, frame: pd.DataFrame) -> None:
    """The x-axis over residual blocks with their stages, from rows `block, stage`."""
    layer_axis(axes, int(frame["block"].max()))
    axes.grid(visible=False, axis="x")
    mark_groups(axes, {"stage 1" if stage == 1 else str(stage): own for stage, own in frame.groupby("stage")["block"]})


def stages_of(blocks: tuple[int, ...]) -> list[int]:
    """The stage of every residual block, from 1, where stages have so many."""
    return [stage for stage, number in enumerate(blocks, start=1) for _ in range(number)]


def log_axis(axes: Axes, values: pd.Series[float]) -> None:
    """A logarithmic y-axis over all positive values, with some air."""
    seen = values[values > 0]
    if seen.empty:
        return
    low, high = float(seen.min()), float(seen.max())
    air = max(_LEAST_RATIO * low / high, 1.0) ** 0.5 * (high / low) ** 0.05
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylim(low / air, high * air)
    log_ticks(axes, high / low * air**2)
