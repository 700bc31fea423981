"""What the figures over layers and tokens share: thin lines with their median, and maps of token x layer under them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from comt_cli.report.figures import broken
from comt_cli.report.figures.style import OKABE_ITO, QUIET, ROUND, SEQUENCE, layer_axis, layer_ticks
from comt_cli.report.figures.tokens import MAX_LINES, token_labels

ROW = 0.118
"""Inches of a token's line in a map."""
READING = "Above a thin line a token and their median, below the map of token and layer."
"""The caption's sentence on how to read the lines and the map."""
_APART = 3
"""Of so many layers off the scale each has a line of its own in the strip; more of them share one."""
_MEDIAN = OKABE_ITO[0]
_SMALL = 6.5


def drawn_tokens(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first `MAX_LINES` tokens: those that are drawn."""
    return frame[frame["position"] < MAX_LINES].reset_index(drop=True)


def site_names(frame: pd.DataFrame) -> pd.Series[str]:
    """What the site of each row is called: its name, and where the frame tells stacks and branches (`stack`, `part`)
    apart, the branch before it, and the stack where there are several."""
    names: pd.Series[str] = frame["site"]
    if "part" in frame:
        names = names.where(frame["part"] == names, frame["part"] + " " + names)
        if frame["stack"].nunique() > 1:
            names = frame["stack"] + " " + names
    return names


def token_names(frame: pd.DataFrame) -> list[str]:
    """The names of the tokens, in the order of the text."""
    names: list[str] = frame.drop_duplicates("position").sort_values("position")["token"].tolist()
    return names


def shown_tokens(drawn: int, tokens: int) -> str:
    """How many of a text's tokens are drawn, if not all."""
    return "" if drawn == tokens else f" (the first {drawn} tokens of {tokens})"


def token_lines(axes: Axes, frame: pd.DataFrame, value: str) -> None:
    """One thin line a token over the layers, from rows `layer, position` and the column `value`, and their median."""
    for _, line in frame.groupby("position"):
        ordered = line.sort_values("layer")
        axes.plot(ordered["layer"].to_numpy(), ordered[value].to_numpy(), color=QUIET, linewidth=0.5, alpha=0.8,
                  zorder=1.5)  # fmt: skip
    middle = frame.groupby("layer")[value].median()
    axes.plot(middle.index.to_numpy(), middle.to_numpy(), color=_MEDIAN, linewidth=1.4, marker="o", zorder=3,
              label="median over tokens")  # fmt: skip


def value_axis(axes: Axes, ends: broken.Ends, *, log: bool = False, least: float = 0.0) -> None:
    """The axis of values between `ends`, with some air; a linear one spans at least `least`, so that rounding noise
    does not look like structure."""
    if log:
        low, high = min(ends.low, 0.95), max(ends.high, 1.05)
        axes.set_yscale("log")
        axes.set_ylim(low * (low / high) ** 0.06, high * (high / low) ** 0.06)
        log_ticks(axes, high / low)
        return
    span = max(ends.high - ends.low, least)
    middle = (ends.low + ends.high) / 2
    axes.set_ylim(middle - 0.56 * span, middle + 0.56 * span)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=ROUND, min_n_ticks=2))


def log_ticks(axes: Axes, ratio: float) -> None:
    """Few and plain numbers on a logarithmic axis whose ends are so many times apart."""
    if ratio < 2:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=ROUND, min_n_ticks=2))
    else:
        axes.yaxis.set_major_locator(
            LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if ratio < 10 else (1, 2, 5) if ratio < 300 else (1,), numticks=9)
        )
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def off_scale(axes: Axes, frame: pd.DataFrame, value: str, ends: broken.Ends, *, brief: bool = False) -> float:
    """Strips for the layers that have values off the scale, each in a line of its own with the least and the greatest
    of these, or in a panel that has room for a `brief` number with the farthest. Many layers are marked in one line,
    and the least and the greatest value of all stand beyond it. Returns the inches that the strips take."""
    layers, inches = int(frame["layer"].max()), 0.0
    for above in (True, False):
        beyond = frame[frame[value] > ends.high] if above else frame[frame[value] < ends.low]
        if beyond.empty:
            continue
        marker = "^" if above else "v"
        ranges = beyond.groupby("layer")[value].agg(["min", "max"])
        ranges = ranges.sort_values("max" if above else "min", ascending=above)  # as on an axis: the farthest last
        levels = len(ranges) if len(ranges) <= _APART else 2
        strip = broken.strip(axes, levels, above=above)
        inches += broken.height(levels)
        for number, (layer, line) in enumerate(ranges.iterrows()):
            place, level = float(str(layer)), number if len(ranges) <= _APART else 0
            strip.plot([place], [level], marker, color=_MEDIAN, markersize=3.4, clip_on=False)
            if len(ranges) <= _APART:
                low, high = line["max" if above and brief else "min"], line["min" if brief and not above else "max"]
                _annotate(strip, _span(low, high), (place, level), is_left=place > 0.6 * layers)
        if len(ranges) > _APART:
            counted = "" if brief else f"{len(ranges)} layers: "
            phrase = counted + _span(ranges["min"].min(), ranges["max"].max())
            _annotate(strip, phrase, (axes.get_xlim()[0], 1), is_left=False)
        if above:
            axes.set_title(axes.get_title(), pad=4 + 72 * broken.height(levels))
        else:
            axes.tick_params(axis="x", pad=3 + 72 * broken.height(levels))
    return inches


def _annotate(strip: Axes, text: str, place: tuple[float, float], *, is_left: bool) -> None:
    strip.annotate(
        text, place, xytext=(-4 if is_left else 4, 0), textcoords="offset points",
        ha="right" if is_left else "left", va="center_baseline", fontsize=_SMALL, color=_MEDIAN, annotation_clip=False,
    )  # fmt: skip


def _span(low: float, high: float) -> str:
    one, other = f"{low:.2g}", f"{high:.2g}"
    return one if one == other else f"{one} to {other}"


def references(axes: Axes, values: Mapping[float, str], *, named: bool, has_room: bool = True) -> None:
    """Grey lines at values that are in sight, with what they are beside the panel, if they are to be `named`. It has
    room for that where a map under it has a colour bar."""
    low, high = axes.get_ylim()
    for value, words in values.items():
        if low < value < high:
            axes.axhline(value, color="#606060", linewidth=0.7, linestyle=":", zorder=1)
            if named:
                note = axes.annotate(words, (1, value), xycoords=axes.get_yaxis_transform(), xytext=(2, 0),
                                     textcoords="offset points", va="center", fontsize=_SMALL, color="#606060",
                                     annotation_clip=False)  # fmt: skip
                note.set_in_layout(not has_room)


def token_map(
    axes: Axes, frame: pd.DataFrame, value: str, ends: broken.Ends, *, log: bool = False, named: bool = True
) -> AxesImage:
    """A map of token x layer, the text from top to bottom, coloured between `ends`; with the tokens' names at its
    left."""
    table = frame.pivot(index="position", columns="layer", values=value).sort_index()
    layers = table.columns.to_numpy()
    norm: Any = LogNorm(ends.low, ends.high) if log and ends.low > 0 else Normalize(ends.low, ends.high)
    edges = (layers.min() - 0.5, layers.max() + 0.5, len(table) - 0.5, -0.5)
    image = axes.imshow(
        table.to_numpy(), aspect="auto", extent=edges, cmap=SEQUENCE, norm=norm, interpolation="nearest"
    )
    axes.grid(visible=False)
    axes.set_xticks(layer_ticks(int(layers.max())))
    if named:
        axes.set_yticks(range(len(table)), token_labels(token_names(frame)), fontsize=6)
        axes.tick_params(axis="y", length=0, pad=2)
    else:
        axes.set_yticks([])
    return image


def extension(values: Sequence[float] | pd.Series[float], ends: broken.Ends) -> str:
    """At which ends a colour bar has arrows: where there are values beyond."""
    low, high = min(values) < ends.low, max(values) > ends.high
    return "both" if low and high else "min" if low else "max" if high else "neither"


def over_layers(axes: Axes, layers: int) -> None:
    """The x-axis of a panel of lines, which stands on one over a map: ticks without numbers."""
    layer_axis(axes, layers)
    axes.set_xlim(0.5, layers + 0.5)
