"""Mean, spread and saturation of the gates per layer and module, as maps with their numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from comt_cli.report.figures.lines import site_names
from comt_cli.report.figures.style import PAGE_WIDTH, ROUND, SEQUENCE, layer_ticks, page_figure, style

_MEASURES = {
    "mean": "mean",
    "std": "standard deviation",
    "saturation": "saturated share",
}
KINDS = ("scalar", "head", "channel", "evaluator")
"""A number a token, a head or a channel; of an Evaluator-Adjuster Unit, x + a e, the e of every channel."""
_BARE = 10
"""Of more layers than this the cells have no room for numbers."""
_SHOWN = 0.005
"""A share that stays below this would be a map of one colour: it is written in words."""


def draw_gate_summary(frame: pd.DataFrame, layer: str = "layer") -> tuple[Figure, pd.DataFrame]:
    """Maps (sites down, layers across) for each kind of factor (`KINDS`): the mean, the standard deviation, and the
    saturated share where any is saturated. A measure has one scale of colours for all kinds.

    `frame` has rows `site, kind, layer, mean, std, saturation` (`analysis.gates.summary_frame`), of a model with
    several stacks also `stack, part`. Cells without a value (a layer without this gate; the saturation of a gate of
    unknown range) stay empty. `layer` is what layers are called. Returns the figure and `frame`.
    """
    kinds = [kind for kind in KINDS if (frame["kind"] == kind).any()]
    named = frame.assign(site=site_names(frame))
    sites = list(dict.fromkeys(named["site"]))
    shown = {key: name for key, name in _MEASURES.items() if key != "saturation" or has_saturated(frame)}
    with style():
        width = PAGE_WIDTH if len(shown) > 2 else 5.6
        figure = page_figure((0.6 + 0.19 * len(sites) + 0.45) * len(kinds) + 0.1, width)
        panels = figure.subplots(len(kinds), len(shown), squeeze=False, sharey=True)
        for column, (measure, title) in zip(panels.T, shown.items(), strict=True):
            ends = (0.0, 1.0) if measure == "saturation" else _ends(frame[measure].to_numpy(dtype=float))
            for axes, kind in zip(column, kinds, strict=True):
                _map(axes, named[named["kind"] == kind], measure, sites, ends)
                axes.set_title(f"{kind}: {title}")
        for axes in panels[-1]:
            axes.set_xlabel(layer)
    return figure, frame


def has_saturated(frame: pd.DataFrame) -> bool:
    """Whether a share of saturated values is there that could be seen."""
    return bool((frame["saturation"] >= _SHOWN).any())


def _map(axes: Axes, frame: pd.DataFrame, measure: str, sites: list[str], ends: tuple[float, float]) -> None:
    layers = sorted(frame["layer"].unique())
    table = frame.pivot(index="site", columns="layer", values=measure).reindex(index=sites, columns=layers)
    values = table.to_numpy(dtype=float)
    edges = (min(layers) - 0.5, max(layers) + 0.5, len(sites) - 0.5, -0.5)
    image = axes.imshow(values, cmap=SEQUENCE, vmin=ends[0], vmax=ends[1], aspect="auto", extent=edges)
    axes.set_yticks(range(len(sites)), sites)
    axes.set_xticks(layer_ticks(max(layers)))
    axes.grid(visible=False)
    if len(layers) <= _BARE:
        middle = sum(ends) / 2
        for (down, across), number in np.ndenumerate(values):
            if np.isfinite(number):
                axes.text(layers[across], down, f"{number:.2f}", ha="center", va="center", fontsize=5.5,
                          color="black" if number > middle else "white")  # fmt: skip
    bar = axes.figure.colorbar(image, ax=axes, pad=0.03)
    bar.ax.tick_params(labelsize=6)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND, min_n_ticks=3))


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    """The colours' ends; a map of one value everywhere must not blow rounding noise up to full contrast."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return (low, high) if high - low > 1e-2 else (low - 5e-3, high + 5e-3)
