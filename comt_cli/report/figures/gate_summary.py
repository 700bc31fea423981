"""Mean, spread and saturation of the gates per layer and module, as maps."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from comt_cli.report.figures.style import SEQUENCE, layer_ticks, page_figure, style

_MEASURES = {
    "mean": "mean",
    "std": "standard deviation",
    "saturation": "saturated share",
}


def draw_gate_summary(frame: pd.DataFrame, layer: str = "layer") -> tuple[Figure, pd.DataFrame]:
    """Three maps (sites down, layers across) for each kind of factor, scalar and channel-wise.

    `frame` has rows `site, kind, layer, mean, std, saturation` (`analysis.gates.summary_frame`). Cells without a value
    (a layer without this gate; the saturation of a gate of unknown range) stay empty. `layer` is what layers are
    called. Returns the figure and `frame`.
    """
    kinds = [kind for kind in ("scalar", "channel") if (frame["kind"] == kind).any()]
    sites = list(dict.fromkeys(frame["site"]))
    with style():
        figure = page_figure((0.6 + 0.19 * len(sites) + 0.45) * len(kinds) + 0.1)
        panels = figure.subplots(len(kinds), len(_MEASURES), squeeze=False, sharey=True)
        for row, kind in zip(panels, kinds, strict=True):
            for axes, (measure, title) in zip(row, _MEASURES.items(), strict=True):
                _map(axes, frame[frame["kind"] == kind], measure, sites)
                axes.set_title(f"{kind}: {title}")
        for axes in panels[-1]:
            axes.set_xlabel(layer)
    return figure, frame


def _map(axes: Axes, frame: pd.DataFrame, measure: str, sites: list[str]) -> None:
    layers = sorted(frame["layer"].unique())
    table = frame.pivot(index="site", columns="layer", values=measure).reindex(index=sites, columns=layers)
    values = table.to_numpy(dtype=float)
    ends = (0.0, 1.0) if measure == "saturation" else _ends(values)
    edges = (min(layers) - 0.5, max(layers) + 0.5, len(sites) - 0.5, -0.5)
    image = axes.imshow(values, cmap=SEQUENCE, vmin=ends[0], vmax=ends[1], aspect="auto", extent=edges)
    axes.set_yticks(range(len(sites)), sites)
    axes.set_xticks(layer_ticks(max(layers)))
    axes.grid(visible=False)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.03)
    bar.ax.tick_params(labelsize=6)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4))


def _ends(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[float, float]:
    """The colours' ends; a map of one value everywhere must not blow rounding noise up to full contrast."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return (low, high) if high - low > 1e-3 else (low - 5e-4, high + 5e-4)
