"""Cosine similarity and norm ratio of every decoder layer's input and output, per token (CoMT, Figure 1)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from comt_cli.report.figures.lines import drawn_tokens, legend_title, token_handles, token_lines
from comt_cli.report.figures.style import QUIET, layer_axis, page_figure, style


def draw_residual_stream(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Panel (a) the cosine similarity, panel (b) the norm ratio on a logarithmic axis; one line a token.

    `frame` has rows `layer, position, token, cosine, norm_ratio` (`analysis.residual_stream`); further columns go into
    the CSV as they are. Returns the figure, and the rows that were drawn: of long texts the first tokens.
    """
    drawn, tokens = drawn_tokens(frame), frame["position"].nunique()
    layers = int(frame["layer"].max())
    with style():
        handles = token_handles(drawn)
        figure = page_figure(max(2.9, 0.5 + 0.135 * len(handles)))
        cosine, ratio = figure.subplots(1, 2, gridspec_kw={"wspace": 0.06})
        token_lines(cosine, drawn, "cosine")
        cosine.set_ylim(min(-0.02, float(drawn["cosine"].min()) - 0.04), 1.02)
        cosine.set_ylabel("cosine(input, output)")
        mean = float(drawn["cosine"].mean())
        cosine.axhline(mean, color=QUIET, linewidth=0.8, linestyle="--", zorder=0.5)
        cosine.set_title("(a) direction kept by each layer")
        note = Line2D([], [], color=QUIET, linewidth=0.8, linestyle="--", label=f"mean {mean:.2f}")
        cosine.legend(handles=[note], loc="best")
        token_lines(ratio, drawn, "norm_ratio")
        _ratio_axis(ratio, drawn["norm_ratio"])
        ratio.set_ylabel("norm of output / norm of input")
        ratio.set_title("(b) growth of the norm in each layer")
        for axes in (cosine, ratio):
            layer_axis(axes, layers)
            axes.set_xlabel("layer")
        figure.legend(
            handles=handles,
            title=legend_title(len(handles), tokens),
            loc="outside right center",
            labelspacing=0.25,
            handlelength=1.2,
        )
    return figure, drawn


def _ratio_axis(axes: Axes, values: pd.Series[float]) -> None:
    """Logarithmic, so that growth by k and shrinking by k look alike; 1 is marked and always in sight."""
    axes.set_yscale("log")
    axes.set_ylim(min(float(values.min()), 0.9) / 1.15, max(float(values.max()), 1.1) * 1.15)
    axes.axhline(1, color=QUIET, linewidth=0.8, zorder=0.5)
    decades = float(values.max() / values.min())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3) if decades > 300 else (1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
