"""What the figures over residual blocks share: the x-axis, with the stages marked."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from comt_cli.report.figures.style import QUIET, layer_axis


def block_axis(axes: Axes, frame: pd.DataFrame) -> None:
    """The x-axis over residual blocks, from rows `block, stage`: thin lines between stages, their numbers on top."""
    layers = int(frame["block"].max())
    layer_axis(axes, layers)
    axes.grid(visible=False, axis="x")
    for stage, blocks in frame.groupby("stage")["block"]:
        first, last = int(blocks.min()), int(blocks.max())
        if first > 1:
            axes.axvline(first - 0.5, color=QUIET, linewidth=0.6, linestyle=(0, (4, 3)), zorder=0.5)
        axes.annotate(
            f"stage {stage}" if last - first > 0.12 * layers else f"{stage}",
            ((first + last) / 2, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 1),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=6.5,
            color=QUIET,
        )


def examples_of(frame: pd.DataFrame) -> str:
    """How many images there were: `2,000`, or `600 to 2,000` where rows differ."""
    low, high = int(frame["examples"].min()), int(frame["examples"].max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
