"""The shares of residual connections over the blocks of a network, one panel a share (SAS, 2019, Figure 3)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comt_cli.report.figures.blocks import block_axis, examples_of
from comt_cli.report.figures.style import OKABE_ITO, page_figure, style

_TITLES = {
    "alpha": "α, of x",
    "beta": "β, of F(x)",
    "(1-alpha)(1-beta)": "(1−α)(1−β), of N(x + F)",
    "gamma": "γ, of N(x + F)",
    "gate": "gate: share of F(x)",
    "a": "a, of F(x)",
    "scale": "scale of F(x)",
}
_LEAST_SPAN = 0.02
"""A panel shows at least this much of the axis, so that rounding noise does not look like structure."""


def draw_residual_shares(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """One panel a share, each with its own axis: points the means over images, the band one standard deviation.

    `frame` has rows `block, stage, share, mean, std, examples` (`analysis.residual_shares`). Returns the figure and
    `frame`.
    """
    shares = list(dict.fromkeys(frame["share"]))
    with style():
        figure = page_figure(2.5)
        for axes, share in zip(figure.subplots(1, len(shares), squeeze=False)[0], shares, strict=True):
            own = frame[frame["share"] == share].sort_values("block")
            _panel(axes, own, OKABE_ITO[shares.index(share)])
            axes.set_title(_TITLES.get(share, share), pad=13)
        spread = ", band ± one standard deviation" if (frame["std"] > 0).any() else ""
        figure.supxlabel(f"residual block (mean over {examples_of(frame)} validation images{spread})", fontsize=8)
    return figure, frame


def _panel(axes: Axes, frame: pd.DataFrame, colour: str) -> None:
    block, mean, std = (frame[key].to_numpy(dtype=float) for key in ("block", "mean", "std"))
    axes.fill_between(block, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
    axes.plot(block, mean, color=colour, linewidth=0.8, marker="o", clip_on=False)
    low, high = float((mean - std).min()), float((mean + std).max())
    room = max(high - low, _LEAST_SPAN) * 0.58
    middle = (low + high) / 2
    axes.set_ylim(middle - room, middle + room)
    block_axis(axes, frame)
