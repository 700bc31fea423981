"""Token-wise scalar gate values across layers, one panel a projection (CoMT, Figure 4; Transponder, Figure 2)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comt_cli.report.figures.lines import drawn_tokens, legend_title, token_handles, token_lines
from comt_cli.report.figures.style import QUIET, layer_axis, page_figure, style

_COLUMNS = 4
_LEAST_SPAN = 0.02
"""A panel shows at least this much of the value axis, so that rounding noise does not look like structure."""


def draw_gate_lines(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """One panel a site, one line a token, and a panel for the legend.

    `frame` has rows `site, layer, position, token, value` (`analysis.gates.scalar_frame`). Panels stand in the order of
    the sites, each with its own value axis; a grey line marks the value 1 where it is in sight.

    Returns the figure, and the rows that were drawn: of long texts the first tokens.
    """
    drawn, tokens = drawn_tokens(frame), frame["position"].nunique()
    sites = list(dict.fromkeys(frame["site"]))
    columns = min(_COLUMNS, len(sites) + 1)
    rows = -(-(len(sites) + 1) // columns)
    with style():
        figure = page_figure(0.4 + 1.75 * rows if rows > 1 else 2.6)
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, site in zip(panels, sites, strict=False):
            here = drawn[drawn["site"] == site]
            token_lines(axes, here, "value")
            _value_axis(axes, here["value"])
            layer_axis(axes, int(frame["layer"].max()))
            axes.set_title(site)
        for axes in panels[len(sites) :]:
            axes.set_axis_off()
        handles = token_handles(drawn)
        panels[len(sites)].legend(
            handles=handles,
            title=legend_title(len(handles), tokens),
            loc="center",
            ncols=2 if len(handles) > 11 else 1,
            columnspacing=0.8,
            handlelength=1.2,
            labelspacing=0.25,
        )
        figure.supxlabel("layer", fontsize=8)
        figure.supylabel("gate value", fontsize=8)
    return figure, drawn


def _value_axis(axes: Axes, values: pd.Series[float]) -> None:
    low, high = float(values.min()), float(values.max())
    span = max(high - low, _LEAST_SPAN)
    middle = (low + high) / 2
    axes.set_ylim(middle - 0.56 * span, middle + 0.56 * span)
    if axes.get_ylim()[0] < 1 < axes.get_ylim()[1]:
        axes.axhline(1, color=QUIET, linewidth=0.8, zorder=0.5)
