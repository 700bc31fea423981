"""The shares of residual connections at every junction of a network of tokens, one panel a share."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from comt_cli.report.figures.residual_shares import TITLES, page_width, share_limits, span
from comt_cli.report.figures.style import OKABE_ITO, QUIET, ROUND, layer_ticks, page_figure, style

_MARKERS = "os^Dv"
_PLACE = "place"


def draw_junction_shares(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """One panel a share: over the junctions in order of depth, stack by stack, the mean over the tokens, with bars
    from the 10th to the 90th percentile. The branches have colours and marks of their own. All axes span as much, so
    that equal heights are equal changes, each about its own middle.

    `frame` has rows `stack, layer, part, share, mean, low, high` (`analysis.junction_shares`), in order of depth.
    Returns the figure and `frame`.
    """
    junctions = frame[["stack", "layer", "part"]].drop_duplicates()
    placed = frame.merge(junctions.assign(**{_PLACE: range(1, len(junctions) + 1)}))
    shares = list(dict.fromkeys(frame["share"]))
    in_stacks = [list(dict.fromkeys(own["part"])) for _, own in junctions.groupby("stack", sort=False)]
    # As in the stack with the most branches: the others have fewer of the same.
    parts = list(dict.fromkeys(part for own in sorted(in_stacks, key=len, reverse=True) for part in own))
    limits = share_limits(frame)
    with style():
        figure = page_figure(2.6, page_width(len(shares)))
        row = figure.subplots(1, len(shares), squeeze=False)[0]
        for axes, share in zip(row, shares, strict=True):
            own = placed[placed["share"] == share]
            for number, part in enumerate(parts):
                for _, line in own[own["part"] == part].groupby("stack", sort=False):
                    axes.errorbar(
                        line[_PLACE], line["mean"], span(line), label=part, color=OKABE_ITO[number],
                        marker=_MARKERS[number % len(_MARKERS)], markersize=3, linewidth=0.8, elinewidth=0.7,
                    )  # fmt: skip
            axes.set_title(TITLES.get(share, share), pad=13)
            axes.set_ylim(*limits[share])
            axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
            _junction_axis(axes, placed)
        row[0].set_ylabel("factor")
        handles, labels = row[0].get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True))
        figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=len(named))
        spread = "; bars: 10 to 90 %" if (frame["high"] > frame["low"]).any() else ""
        figure.supxlabel(f"layer (mean over the tokens{spread})", fontsize=8)
    return figure, frame


def _junction_axis(axes: Axes, placed: pd.DataFrame) -> None:
    """The x-axis over junctions: a layer's number in the middle of its own, thin lines between stacks, whose names are
    on top."""
    axes.set_xlim(0.4, placed[_PLACE].max() + 0.6)
    axes.grid(visible=False, axis="x")
    ticks: dict[float, int] = {}
    for stack, own in placed.groupby("stack", sort=False):
        first, last = own[_PLACE].min(), own[_PLACE].max()
        middles = (own.groupby("layer")[_PLACE].min() + own.groupby("layer")[_PLACE].max()) / 2
        shown = layer_ticks(int(own["layer"].max()))
        ticks |= {middle: int(str(layer)) for layer, middle in middles.items() if layer in shown}
        if first > 1:
            axes.axvline(first - 0.5, color=QUIET, linewidth=0.6, linestyle=(0, (4, 3)), zorder=0.5)
        axes.annotate(
            str(stack), ((first + last) / 2, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 1),
            textcoords="offset points", ha="center", va="bottom", fontsize=6.5, color=QUIET,
        )  # fmt: skip
    axes.set_xticks(list(ticks), [str(layer) for layer in ticks.values()])
