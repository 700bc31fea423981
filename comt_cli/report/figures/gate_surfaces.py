"""Channel-wise gate values as surfaces over channels and tokens, a panel a layer (Transponder, Figure 3)."""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d import Axes3D  # type: ignore[import-untyped]

from comt_cli.report.figures.lines import drawn_tokens, legend_title, token_names
from comt_cli.report.figures.style import PAGE_WIDTH, SEQUENCE, page_figure, style
from comt_cli.report.figures.tokens import token_labels

MAX_CHANNELS = 64
"""More channels than this are thinned out before they are drawn: finer ridges than that cannot be seen in print."""
_MOST_COLUMNS = 4
_NOTE_WIDTH = 125
"""Characters of the note's size on a line of page width."""


def draw_gate_surfaces(frame: pd.DataFrame, site: str) -> tuple[Figure, pd.DataFrame]:
    """One surface a layer; all panels share the value axis and its colours.

    `frame` has rows `layer, position, token, channel, value` (`analysis.gates.channel_frame`). Channels that are not
    next to each other are taken as thinned out, and the axis says so.

    Returns the figure, and the rows that were drawn: of long texts the first tokens.
    """
    drawn, tokens = drawn_tokens(frame), frame["position"].nunique()
    layers = sorted(drawn["layer"].unique())
    columns = _columns(len(layers))
    rows = -(-len(layers) // columns)
    norm = Normalize(float(drawn["value"].min()), float(drawn["value"].max()))
    with style():
        figure = page_figure(0.9 + PAGE_WIDTH / columns * 0.86 * rows)
        for number, layer in enumerate(layers):
            axes = figure.add_subplot(rows, columns, number + 1, projection="3d")
            _surface(axes, drawn[drawn["layer"] == layer], norm)
            axes.set_title(f"layer {layer}", pad=-2)
        bar = figure.colorbar(
            ScalarMappable(norm, SEQUENCE), ax=figure.axes, shrink=min(1.0, 1.6 / rows), pad=0.05, aspect=25
        )
        bar.set_label(f"channel-wise gate value at {site}")
        # names are not broken between their number and their text
        names = " · ".join(label.replace(" ", "\u00a0") for label in token_labels(token_names(drawn)))
        shown = legend_title(drawn["position"].nunique(), tokens)
        note = f"Channel axis: {_channels(drawn)}. {shown.capitalize()}: {names}"
        figure.supxlabel(textwrap.fill(note, _NOTE_WIDTH), fontsize=7)
    return figure, drawn


def _columns(panels: int) -> int:
    """Four, or three where that leaves fewer places empty."""
    if panels <= _MOST_COLUMNS:
        return panels
    return min((_MOST_COLUMNS, _MOST_COLUMNS - 1), key=lambda columns: -panels % columns)


def _surface(axes: Axes3D, frame: pd.DataFrame, norm: Normalize) -> None:
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
    axes.set_zlim(norm.vmin, norm.vmax)
    axes.set_xlabel("channel", labelpad=-8)
    axes.set_ylabel("token", labelpad=-8)
    axes.tick_params(labelsize=6, pad=-3)
    axes.locator_params(nbins=4)
    axes.view_init(elev=28, azim=-55)


def _channels(frame: pd.DataFrame) -> str:
    channels = sorted(frame["channel"].unique())
    step = int(channels[1] - channels[0]) if len(channels) > 1 else 1
    return "all channels" if step == 1 else f"one channel in {step}"
