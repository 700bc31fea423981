"""The shares of residual connections over the blocks of a network, one panel a share (SAS, 2019, Figure 3)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from comt_cli.report.figures.blocks import block_axis, examples_of
from comt_cli.report.figures.style import OKABE_ITO, PAGE_WIDTH, ROUND, page_figure, style

TITLES = {
    "alpha": "α, of x",
    "beta": "β, of F(x)",
    "(1-alpha)(1-beta)": "(1−α)(1−β), of N(x + F)",
    "gamma": "γ, of N(x + F)",
    "gate": "gate: share of F(x)",
    "g": "g, of F(x)",
    "a": "a, of F(x)",
    "b": "b, of x",
    "scale": "scale of F(x)",
}
"""What a share is, by its name."""
_LEAST_SPAN = 0.1
"""A panel shows at least this much of the axis, so that rounding noise does not look like structure."""
_ALONE = 3.6
"""Inches of a figure with one panel."""


def draw_residual_shares(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """One panel a share: points the means over images, the band from the 10th to the 90th percentile. All axes span as
    much, so that equal heights are equal changes, each about its own middle.

    `frame` has rows `block, stage, share, mean, low, high, examples` (`analysis.residual_shares`). Returns the figure
    and `frame`.
    """
    shares = list(dict.fromkeys(frame["share"]))
    limits = share_limits(frame)
    with style():
        figure = page_figure(2.3, page_width(len(shares)))
        row = figure.subplots(1, len(shares), squeeze=False)[0]
        for axes, share in zip(row, shares, strict=True):
            own = frame[frame["share"] == share].sort_values("block")
            _panel(axes, own, OKABE_ITO[shares.index(share)], limits[share])
            axes.set_title(TITLES.get(share, share), pad=13)
        row[0].set_ylabel("factor")
        spread = "; band: 10 to 90 %" if (frame["high"] > frame["low"]).any() else ""
        figure.supxlabel(f"residual block (mean over {examples_of(frame)} validation images{spread})", fontsize=8)
    return figure, frame


def page_width(panels: int) -> float:
    """Inches for so many panels abreast: a page from three on."""
    return min(_ALONE + 1.8 * (panels - 1), PAGE_WIDTH)


def share_limits(frame: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """The ends of each share's axis (rows `share, mean, low, high`): all span as much, each about its own middle."""
    own = frame.groupby("share")[["mean", "low", "high"]]
    ends = pd.DataFrame({"low": own.min().min(axis=1), "high": own.max().max(axis=1)})
    half = 0.58 * max(_LEAST_SPAN, float((ends["high"] - ends["low"]).max()))
    return {
        str(share): (middle - half, middle + half)
        for share, middle in zip(ends.index, (ends["low"] + ends["high"]) / 2, strict=True)
    }


def span(frame: pd.DataFrame) -> list[pd.Series]:
    """How far a bar reaches below and above each mean, which may lie beyond a percentile."""
    return [(frame["mean"] - frame["low"]).clip(lower=0), (frame["high"] - frame["mean"]).clip(lower=0)]


def _panel(axes: Axes, frame: pd.DataFrame, colour: str, limits: tuple[float, float]) -> None:
    block, mean, low, high = (frame[key].to_numpy(dtype=float) for key in ("block", "mean", "low", "high"))
    axes.fill_between(block, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(block, mean, color=colour, linewidth=0.8, marker="o", clip_on=False)
    axes.set_ylim(*limits)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
    block_axis(axes, frame)
