"""The gradient's norm at the output of every residual block, one line a network (SAS, 2019, Figure 4)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from comt_cli.report.figures.blocks import block_axis, examples_of
from comt_cli.report.figures.lines import log_ticks
from comt_cli.report.figures.style import page_figure, series_colours, style

_MARKERS = ("o", "s", "^", "D", "v")
_LEAST_RATIO = 1.5
"""The axis spans at least this ratio, so that rounding noise does not look like structure."""
_WIDTH = 5.6


def draw_block_gradients(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """One line a row, the mean norm over images, on a logarithmic axis: a flat line is an even distribution over depth.
    The band is twice the standard error of the mean on either side: of these images, not of several trainings.

    `frame` has rows `row, block, stage, mean, std, examples` (`analysis.block_gradients`). Networks may differ in
    depth; the stages marked are those of the deepest. Returns the figure and `frame`.
    """
    rows = list(dict.fromkeys(frame["row"]))
    deepest = frame.sort_values("block")["row"].iloc[-1]
    with style():
        figure = page_figure(2.5, _WIDTH)
        axes = figure.subplots()
        for number, (row, colour) in enumerate(zip(rows, series_colours(len(rows)), strict=True)):
            own = frame[frame["row"] == row].sort_values("block")
            block, mean = own["block"].to_numpy(), own["mean"].to_numpy()
            marker = _MARKERS[number % len(_MARKERS)]
            axes.plot(block, mean, color=colour, marker=marker, label=row, clip_on=False)
            error = 2 * own["std"].to_numpy() / np.sqrt(own["examples"].to_numpy())
            axes.fill_between(
                block, np.maximum(mean - error, 1e-30), mean + error, color=colour, alpha=0.2, linewidth=0
            )
        _norm_axis(axes, frame["mean"])
        block_axis(axes, frame[frame["row"] == deepest])
        axes.set_ylabel("norm of the gradient\nat the output (log scale)")
        axes.set_xlabel(f"residual block (mean over {examples_of(frame)} training images)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
    return figure, frame


def findings(frame: pd.DataFrame, baseline: str, as_in_paper: Collection[str]) -> list[str]:
    """What the lines come to; of the rows `as_in_paper`, which are SAS, beside what SAS's paper says of its Figure 4:
    that the gradients of x + F are basically the same in all blocks, that with SAS more is allocated to the lower ones,
    and that its gradients are greater."""
    thirds = {str(row): _thirds(own) for row, own in frame.groupby("row", sort=False)}
    said = [
        f"The gradient of {row} is {low / high:.2g} times as large in the lower third of the blocks as in the "
        f"upper third; the greatest of a block is {greatest / least:.2g} times the least."
        for row, (low, high, _, least, greatest) in thirds.items()
        if least > 0
    ]
    base = thirds.get(baseline)
    for row, own in thirds.items():
        if base is None or row == baseline or min(*own, *base) <= 0:
            continue
        lower, overall = own[0] / base[0], own[2] / base[2]
        said.append(
            f"The gradient of {row} is {lower:.2g} times that of {baseline} in the lower third, and {overall:.2g} "
            "times over all blocks."
        )
        if row not in as_in_paper:
            continue
        lifts = own[0] / own[1] > base[0] / base[1]
        said.append(
            f"The paper's figure shows more gradient in the lower blocks with SAS: {_seen(is_so=lifts)}. It shows "
            f"greater gradients overall with SAS: {_seen(is_so=overall > 1)}. It shows those of x + F as basically the "
            f"same in all blocks: here they differ by {base[4] / base[3]:.2g} times. One training of each was seen."
        )
    return said


def _thirds(own: pd.DataFrame) -> tuple[float, float, float, float, float]:
    """Geometric means of the lower and the upper third of the blocks and of all, and the least and greatest block."""
    mean = own.sort_values("block")["mean"].to_numpy(dtype=float)
    size = max(len(mean) // 3, 1)
    if (mean <= 0).any():
        return 0.0, 0.0, 0.0, 0.0, 0.0
    low, high, whole = (float(np.exp(np.log(part).mean())) for part in (mean[:size], mean[-size:], mean))
    return low, high, whole, float(mean.min()), float(mean.max())


def _seen(*, is_so: bool) -> str:
    return "so it is here" if is_so else "here it is the other way round"


def _norm_axis(axes: Axes, values: pd.Series[float]) -> None:
    seen = values[values > 0]
    if seen.empty:
        return
    low, high = float(seen.min()), float(seen.max())
    air = max(_LEAST_RATIO * low / high, 1.0) ** 0.5 * (high / low) ** 0.05
    axes.set_yscale("log", nonpositive="mask")
    axes.set_ylim(low / air, high * air)
    log_ticks(axes, high / low * air**2)
    axes.yaxis.set_minor_locator(NullLocator())
