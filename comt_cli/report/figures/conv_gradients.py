"""The gradient's norm at every convolution over depth and training, one colour and one map a run (CoMT, Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from comt_cli.report.figures.broken import Ends, robust_ends, strip
from comt_cli.report.figures.broken import height as broken_height
from comt_cli.report.figures.style import QUIET, SEQUENCE, page_figure, series_colours, style

_MOST_STEPS = 60
"""More steps than this are thinned out before they are drawn as maps: a line of a map is then wide enough to see."""
_MAPS_ABREAST = 2
_STEP = "step "
"""What the columns of a map begin with, before the step's number."""
_LOOKS: dict[str, tuple[tuple[float, Sequence[float]], float]] = {
    "median": ((0, ()), 1.1),
    "greatest": ((0, (2, 1)), 0.8),
}
"""What is drawn of the steps: dashes and width of its line."""


def draw_conv_gradients(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Panel (a): the median and the greatest norm of the logged steps over depth, panel (b): those of the convolutions
    over the steps, where peaks early in training are seen; all runs on one logarithmic axis, which a convolution or
    step far from all others does not rule. Panels (c), (d) ...: a map of depth and step for each run, all of one scale
    of colours.

    `frame` has rows `row, convolution, depth, step, norm` (`analysis.conv_gradients`). Norms of 0, as where a residual
    branch is switched off, count in neither and stay white in a map. Where the runs did not log the same steps, the
    legend says of each which it is drawn from.

    Returns the figure and what was drawn: rows `row, convolution, depth, median, greatest`, and for each step of the
    maps a column `step <n>`.
    """
    rows = list(dict.fromkeys(frame["row"]))
    drawn = {row: _drawn(frame[frame["row"] == row]) for row in rows}
    lines = -(-len(rows) // _MAPS_ABREAST)
    names, span = _names(frame)
    columns = _legend_columns(names)
    heights = 2.45 + 0.14 * -(-(len(rows) + len(_LOOKS)) // columns), 0.25 + 1.6 * lines
    with style():
        figure = page_figure(sum(heights))
        above, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)[:, 0]
        left, right = above.subplots(1, 2, sharey=True)
        by_step = {row: _by_step(frame[frame["row"] == row]) for row in rows}
        both = pd.concat([*drawn.values(), *by_step.values()])
        ends = robust_ends(both[["median", "greatest"]].to_numpy().ravel(), log=True)
        handles = _lines(left, drawn, names, "depth")
        _lines(right, by_step, names, "step")
        _norm_axis(left, ends.low, ends.high)
        _depth_axis(left, int(frame["depth"].max()))
        left.set_xlabel("convolution, counted from the input")
        left.set_ylabel("gradient norm (log scale)")
        right.set_xlabel("training step")
        left.set_title(f"(a) of each convolution{span}")
        right.set_title("(b) at each step")
        _off_scale(left, drawn, "depth", ends)
        _off_scale(right, by_step, "step", ends)
        above.legend(handles=handles, loc="outside lower center", ncols=columns)
        norm_ends = _colour_ends(frame["norm"])
        norm = LogNorm(*norm_ends)
        panels = below.subplots(lines, min(len(rows), _MAPS_ABREAST), squeeze=False)
        for number, (row, panel) in enumerate(zip(rows, panels.ravel(), strict=False)):
            image = _map(panel, drawn[row], norm)
            title = f"({chr(ord('c') + number)}) {row}"
            panel.set_title(title, fontsize=min(8.5, 340 / len(title)))  # a long one would reach into the next
        for panel in panels.ravel()[len(rows) :]:
            panel.set_axis_off()
        for line in panels:
            line[0].set_ylabel("training step")
        below.supxlabel("convolution, counted from the input", fontsize=8)
        bar = below.colorbar(image, ax=panels, pad=0.015, aspect=22 * lines)
        bar.set_label("gradient norm (log scale)")
        _few_numbers(bar.ax.yaxis, *norm_ends)
    return figure, pd.concat(drawn.values(), ignore_index=True)


def _drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a convolution: what a run's panels show."""
    table = frame.pivot(index=["row", "convolution", "depth"], columns="step", values="norm").sort_index(level="depth")
    seen = table.where(table > 0)
    steps = table.columns.to_numpy()
    shown = steps[np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_STEPS)).round().astype(int))]
    summary = pd.DataFrame({"median": seen.median(axis=1), "greatest": seen.max(axis=1)})
    return summary.join(table[shown].rename(columns=lambda step: f"{_STEP}{step}")).reset_index()


def _names(frame: pd.DataFrame) -> tuple[list[str], str]:
    """What the legend calls each run, and what the title says of the steps: theirs, where all logged the same ones.

    Else a median over 20 steps would pass for one over 300, and the legend has each run's own.
    """
    steps = {str(row): sorted(set(of_row)) for row, of_row in frame.groupby("row", sort=False)["step"]}
    first, *others = steps.values()
    if all(each == first for each in others):
        return list(steps), f", {_span(first)}"
    return [f"{row}, {f'{len(each)} of ' if len(each) > 1 else ''}{_span(each)}" for row, each in steps.items()], ""


def _legend_columns(names: list[str]) -> int:
    """As many as a legend of page width has room for: some 120 letters, of which a line's sample takes eight."""
    if sum(len(name) + 8 for name in names) < 75:
        return len(names) + len(_LOOKS)
    return 2 if max(map(len, names)) <= 50 else 1


def _span(steps: list[int]) -> str:
    first, last = steps[0], steps[-1]
    return f"steps {first} to {last}" if first < last else f"step {first}"


def _by_step(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a step: the median and the greatest norm of the convolutions; norms of 0 count in neither."""
    seen = frame[frame["norm"] > 0].groupby("step")["norm"]
    return pd.DataFrame({"median": seen.median(), "greatest": seen.max()}).reset_index()


def _lines(axes: Axes, drawn: dict[str, pd.DataFrame], names: list[str], x: str) -> list[Line2D]:
    """The lines of a panel, over depth or steps; returns what the legend says."""
    colours = series_colours(len(drawn))
    for table, colour in zip(drawn.values(), colours, strict=True):
        for name, (dashes, width) in _LOOKS.items():
            axes.plot(table[x].to_numpy(), table[name].to_numpy(), color=colour, linestyle=dashes, linewidth=width)
    handles = [Line2D([], [], color=colour, label=name) for name, colour in zip(names, colours, strict=True)]
    return handles + [
        Line2D([], [], color=QUIET, linestyle=dashes, linewidth=width, label=name)
        for name, (dashes, width) in _LOOKS.items()
    ]


def _off_scale(axes: Axes, drawn: dict[str, pd.DataFrame], x: str, ends: Ends) -> None:
    """A strip with what is far above the frame, or far below it: the number of the farthest, a mark for the others."""
    for above in (True, False):
        off = [
            (float(place), float(value), colour)
            for table, colour in zip(drawn.values(), series_colours(len(drawn)), strict=True)
            for name in _LOOKS
            for place, value in zip(table[x], table[name], strict=True)
            if (value > ends.high if above else 0 < value < ends.low)
        ]
        if not off:
            continue
        beyond = strip(axes, 1, above=above)
        for place, _, colour in off:
            beyond.plot([place], [0], "^" if above else "v", color=colour, markersize=3, clip_on=False)
        place, value, _ = (max if above else min)(off, key=lambda each: each[1])
        low, high = axes.get_xlim()
        is_left = (place - low) / (high - low) < 0.6
        beyond.annotate(f"{value:.2g}", (place, 0), xytext=(5 if is_left else -5, 0), textcoords="offset points",
                        ha="left" if is_left else "right", va="center_baseline", fontsize=6.5,
                        annotation_clip=False)  # fmt: skip
        if above:
            axes.set_title(axes.get_title(), pad=4 + 72 * broken_height(1))
        else:
            axes.tick_params(axis="x", pad=3 + 72 * broken_height(1))


def _norm_axis(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log", nonpositive="mask")
    if not 0 < low <= high:  # no norm but 0 was logged
        return
    axes.set_ylim(low / 1.25, high * 1.25)
    _few_numbers(axes.yaxis, low, high)


def _few_numbers(axis: Axis, low: float, high: float) -> None:
    """Powers of ten on a logarithmic axis, and 2 and 5 times these where there are few."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def _depth_axis(axes: Axes, depth: int) -> None:
    axes.set_xlim(0.5, depth + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))


def _colour_ends(norms: pd.Series[float]) -> tuple[float, float]:
    seen = norms[norms > 0]
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (1.0, 1.0)
    return (low, high) if high > 1.01 * low else (low / 1.01, high * 1.01)


def _map(axes: Axes, table: pd.DataFrame, norm: LogNorm) -> QuadMesh:
    """A map's lines are the logged steps, each as wide as it is to halfway to the next."""
    named = [name for name in map(str, table.columns) if name.startswith(_STEP)]
    steps = np.array([int(name.removeprefix(_STEP)) for name in named], dtype=np.float64)
    values = table[named].to_numpy(dtype=np.float64).T
    edges = np.concatenate([steps[:1] - 0.5, (steps[1:] + steps[:-1]) / 2, steps[-1:] + 0.5])
    across = np.arange(len(table) + 1) + 0.5
    shown = np.where(values > 0, values, np.nan)
    mesh = axes.pcolormesh(across, edges, shown, norm=norm, cmap=SEQUENCE, rasterized=True)
    axes.grid(visible=False)
    _depth_axis(axes, len(table))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    return mesh
