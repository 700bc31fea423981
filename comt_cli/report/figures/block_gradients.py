"""The gradient's norm at the output of every residual block, one line a network (SAS, 2019, Figure 4)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from comt_cli.report.figures.blocks import block_axis, examples_of
from comt_cli.report.figures.style import page_figure, series_colours, style

_MARKERS = ("o", "s", "^", "D", "v")
_LEAST_RATIO = 1.5
"""The axis spans at least this ratio, so that rounding noise does not look like structure."""


def draw_block_gradients(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """One line a row, the mean norm over images, on a logarithmic axis: what lies flat is shared out evenly over depth.

    `frame` has rows `row, block, stage, mean, std, examples` (`analysis.block_gradients`). Networks may differ in
    depth; the stages marked are those of the deepest. Returns the figure and `frame`.
    """
    rows = list(dict.fromkeys(frame["row"]))
    deepest = frame.sort_values("block")["row"].iloc[-1]
    with style():
        figure = page_figure(2.6)
        axes = figure.subplots()
        for number, (row, colour) in enumerate(zip(rows, series_colours(len(rows)), strict=True)):
            own = frame[frame["row"] == row].sort_values("block")
            marker = _MARKERS[number % len(_MARKERS)]
            axes.plot(
                own["block"].to_numpy(), own["mean"].to_numpy(), color=colour, marker=marker, label=row, clip_on=False
            )
        _norm_axis(axes, frame["mean"])
        block_axis(axes, frame[frame["row"] == deepest])
        axes.set_ylabel("norm of the gradient at the output")
        axes.set_xlabel(f"residual block (mean over {examples_of(frame)} training images)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
    return figure, frame


def _norm_axis(axes: Axes, values: pd.Series[float]) -> None:
    seen = values[values > 0]
    if seen.empty:
        return
    low, high = float(seen.min()), float(seen.max())
    air = max(_LEAST_RATIO * low / high, 1.0) ** 0.5 * (high / low) ** 0.05
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylim(low / air, high * air)
    ratio = high / low * air**2
    axes.yaxis.set_major_locator(
        LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if ratio < 20 else (1, 3) if ratio < 3e3 else (1,))
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())
