"""Channel-wise gate values over channels and tokens: surfaces as in the paper, and maps that can be read (Transponder,
Figure 3)."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from mpl_toolkits.mplot3d import Axes3D  # type: ignore[import-untyped]

from comt_cli.report.figures import lines
from comt_cli.report.figures.broken import robust_ends
from comt_cli.report.figures.style import PAGE_WIDTH, SEQUENCE, page_figure, style
from comt_cli.report.figures.tokens import token_labels

MAX_CHANNELS = 64
"""More channels than this are thinned out before they are drawn: finer ridges than that cannot be seen in print."""
_ABREAST = 4
_MOST_MAPS = 8
"""Layers that have a map, at even distances, of deeper networks; half as many where the maps of long texts would not
fit on a page."""
_LONG = 24


def draw_gate_surfaces(frame: pd.DataFrame, site: str) -> tuple[Figure, pd.DataFrame]:
    """Above a surface a layer, for at most four, below a map of token x channel, for at most eight, of long texts four;
    all of one scale.

    `frame` has rows `layer, position, token, channel, value` (`analysis.gates.channel_frame`). Channels that are not
    next to each other are taken as thinned out, and the axis says so. A few values far from all others do not rule the
    colours: they have the one of the scale's end.

    Returns the figure, and the rows that were drawn: of long texts the first tokens, of all layers.
    """
    drawn, tokens = lines.drawn_tokens(frame), frame["position"].nunique()
    layers = sorted(drawn["layer"].unique())
    shown = drawn["position"].nunique()
    few = _spread(layers, _ABREAST)
    deep = few if shown > _LONG else _spread(layers, _MOST_MAPS)
    ends = robust_ends(drawn["value"].to_numpy())
    norm = Normalize(ends.low, ends.high)
    lines_of_maps = -(-len(deep) // _ABREAST)
    heights = 1.75, 0.55 + (max(0.7, lines.ROW * shown) + 0.35) * lines_of_maps
    with style():
        figure = page_figure(sum(heights))
        above, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)[:, 0]
        _surfaces(above, drawn, few, norm)
        grid = below.subplots(lines_of_maps, min(len(deep), _ABREAST), squeeze=False)
        for number, (axes, layer) in enumerate(zip(grid.ravel(), deep, strict=False)):
            here = drawn[drawn["layer"] == layer]
            table = here.pivot(index="position", columns="channel", values="value").sort_index()
            channel_C = table.columns.to_numpy(dtype=float)
            step = float(channel_C[1] - channel_C[0]) if len(channel_C) > 1 else 1.0
            edges = (channel_C[0] - step / 2, channel_C[-1] + step / 2, len(table) - 0.5, -0.5)
            axes.imshow(
                table.to_numpy(), aspect="auto", extent=edges, cmap=SEQUENCE, norm=norm, interpolation="nearest"
            )
            axes.grid(visible=False)
            axes.set_title(f"layer {layer}")
            axes.locator_params(axis="x", nbins=4)
            if number % _ABREAST == 0:
                axes.set_yticks(range(len(table)), token_labels(lines.token_names(here)), fontsize=6)
                axes.tick_params(axis="y", length=0, pad=2)
                axes.set_ylabel(f"token{lines.shown_tokens(shown, tokens)}")
            else:
                axes.set_yticks([])
        for axes in grid.ravel()[len(deep) :]:
            axes.set_axis_off()
        below.supxlabel(f"channel of {site} ({_channels(drawn)})", fontsize=8)
        bar = below.colorbar(
            ScalarMappable(norm, SEQUENCE), ax=grid, pad=0.01, aspect=30, extendfrac=0.04,
            extend=lines.extension(drawn["value"], ends),
        )  # fmt: skip
        bar.set_label("gate value")
    return figure, drawn


def _spread(layers: list[int], most: int) -> list[int]:
    """At most so many of the layers, at even distances, the first and the last among them."""
    chosen = np.unique(np.linspace(0, len(layers) - 1, min(most, len(layers))).round().astype(int))
    return [layers[place] for place in chosen]


def _surfaces(part: SubFigure, drawn: pd.DataFrame, layers: list[int], norm: Normalize) -> None:
    """3D panels leave wide margins by themselves: they are placed by hand, abreast."""
    width = 1 / max(len(layers), 2)
    size = min(width, 1.75 / PAGE_WIDTH * 1.15)
    for number, layer in enumerate(layers):
        left = (number + 0.5) * width - size / 2
        axes = part.add_axes((left, 0.1, size * 0.9, 0.82), projection="3d")
        axes.set_in_layout(False)
        _surface(axes, drawn[drawn["layer"] == layer], norm, (drawn["value"].min(), drawn["value"].max()))
        axes.set_title(f"layer {layer}", y=0.98, pad=0)


def _surface(axes: Axes3D, frame: pd.DataFrame, norm: Normalize, ends: tuple[float, float]) -> None:
    table = frame.pivot(index="position", columns="channel", values="value")
    channel_C = table.columns.to_numpy(dtype=float)
    position_T = table.index.to_numpy(dtype=float) + 1
    axes.plot_surface(
        channel_C[None, :],
        position_T[:, None],
        table.to_numpy(),
        cmap=SEQUENCE,
        norm=norm,
        rcount=len(position_T),
        ccount=len(channel_C),
        linewidth=0,
        antialiased=False,
        rasterized=True,  # tens of thousands of patches would make the PDF heavy; text and axes stay vectors
    )
    axes.set_zlim(*ends)
    axes.set_xlabel("channel", labelpad=-10, fontsize=6.5)
    axes.set_ylabel("token", labelpad=-10, fontsize=6.5)
    axes.set_zlabel("gate value", labelpad=-10, fontsize=6.5)
    axes.tick_params(labelsize=5.5, pad=-4)
    axes.locator_params(nbins=3)
    axes.view_init(elev=28, azim=-55)


def _channels(frame: pd.DataFrame) -> str:
    channels = sorted(frame["channel"].unique())
    step = int(channels[1] - channels[0]) if len(channels) > 1 else 1
    return "all" if step == 1 else f"one in {step}"
