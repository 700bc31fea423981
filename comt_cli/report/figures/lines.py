"""What the figures over layers and tokens share: thin lines with their median, maps of token x layer under them, and
broken axes: what lies far from everything else stands in a strip of its own beyond the frame, with its value."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation, blended_transform_factory
from numpy.typing import NDArray

from comt_cli.report.figures.style import OKABE_ITO, QUIET, ROUND, SEQUENCE, layer_axis, layer_ticks

ROW = 0.118
"""Inches of a token's line in a map."""
READING = "Above a thin line a token and their median, below the map of token and layer."
"""The caption's sentence on how to read the lines and the map."""
_APART = 3
"""Of so many layers off the scale each has a line of its own in the strip; more of them share one."""
_MEDIAN = OKABE_ITO[0]
_SMALL = 6.5
GAP = 0.045
"""Inches between the frame and the strip, in which the axis is broken off."""
LEVEL = 0.15
"""Inches of a line of marks in a strip."""
_TAIL = 1 / 3
"""At most such a share of the values may be off the scale, together."""
_DISTANCE = 0.5
"""What is off the scale is farther from the rest than so many times the span of the rest."""
_DWARFS = 2.0
"""What is nearer to the rest than others that are off the scale is off it too if it is farther than so many times."""
MAX_LINES = 36
"""So many tokens get a line of their own, as many as an image of scenes has regions; the legend says how many the text
has."""
_LONGEST = 14
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Ends:
    """The least and the greatest value on the scale; what is below or above stands on a broken axis."""

    low: float
    high: float


def robust_ends(values: Sequence[float] | NDArray[Any], *, log: bool = False) -> Ends:
    """The ends of a scale that a few outliers do not rule.

    From either side at most a third of the values is left out, and only what a gap parts from the others that is wider
    than half of what those span: of values that run on evenly none is.
    """
    given = np.sort(np.asarray(values, dtype=float))
    given = given[np.isfinite(given) & ((given > 0) if log else True)]
    if not given.size:
        return Ends(0.0, 1.0)
    seen = np.log(given) if log else given
    least = 1e-3 * (1.0 if log else float(np.abs(seen).max()))  # rounding noise is no gap
    most = int(len(seen) * _TAIL)
    above = _tail(-seen[::-1], most, least)
    below = _tail(seen[: len(seen) - above], most - above, least)
    return Ends(float(given[below]), float(given[-1 - above]))


def _tail(rising: NDArray[Any], most: int, least: float) -> int:
    """How many of the first values, at most so many, are far from the others: those before the first gap that is wide
    enough; more of them only where the next gap dwarfs what would be left."""
    tail = 0
    for cut in range(1, most + 1):
        gap, span = rising[cut] - rising[cut - 1], rising[-1] - rising[cut]
        if gap > least and gap > (_DWARFS if tail else _DISTANCE) * span:
            tail = cut
    return tail


def strip_height(levels: int) -> float:
    """Inches of a strip with so many lines, the gap included; 0 without any."""
    return GAP + LEVEL * levels + 0.03 if levels else 0.0


def axis_strip(axes: Axes, levels: int, *, above: bool = True) -> Axes:
    """A strip of `levels` lines beyond the upper, or the lower, end of a panel's axis; it has the panel's x-axis.

    Its own y-axis counts the lines, 0 the nearest to the frame. Two slanted strokes part it from the panel.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    edge = ScaledTranslation(0, 1 if above else 0, axes.transAxes)  # type: ignore[arg-type]
    inches = blended_transform_factory(axes.transAxes, figure.dpi_scale_trans + edge)
    tall = strip_height(levels) - GAP
    bounds = (0.0, GAP if above else -GAP - tall, 1.0, tall)
    beyond: Axes = axes.inset_axes(bounds, transform=inches, sharex=axes)
    beyond.set_ylim(-0.6, levels - 0.4)
    if not above:
        beyond.invert_yaxis()
    beyond.set_yticks([])
    beyond.grid(visible=False, axis="y")
    beyond.tick_params(bottom=False, labelbottom=False, which="both")
    beyond.spines["bottom"].set_visible(False)
    stroke: dict[str, Any] = {
        "marker": [(-1, -0.5), (1, 0.5)], "markersize": 5, "linestyle": "none", "color": "black",
        "markeredgewidth": 0.7, "clip_on": False, "zorder": 5,
    }  # fmt: skip
    axes.plot([0], [1 if above else 0], transform=axes.transAxes, **stroke)
    beyond.plot([0], [0 if above else 1], transform=beyond.transAxes, **stroke)
    beyond.set_label("off the scale")
    return beyond


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


def value_axis(axes: Axes, ends: Ends, *, log: bool = False, least: float = 0.0) -> None:
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


def off_scale(axes: Axes, frame: pd.DataFrame, value: str, ends: Ends, *, brief: bool = False) -> float:
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
        beside = axis_strip(axes, levels, above=above)
        inches += strip_height(levels)
        for number, (layer, line) in enumerate(ranges.iterrows()):
            place, level = float(str(layer)), number if len(ranges) <= _APART else 0
            beside.plot([place], [level], marker, color=_MEDIAN, markersize=3.4, clip_on=False)
            if len(ranges) <= _APART:
                low, high = line["max" if above and brief else "min"], line["min" if brief and not above else "max"]
                _annotate(beside, _span(low, high), (place, level), is_left=place > 0.6 * layers)
        if len(ranges) > _APART:
            counted = "" if brief else f"{len(ranges)} layers: "
            phrase = counted + _span(ranges["min"].min(), ranges["max"].max())
            _annotate(beside, phrase, (axes.get_xlim()[0], 1), is_left=False)
        if above:
            axes.set_title(axes.get_title(), pad=4 + 72 * strip_height(levels))
        else:
            axes.tick_params(axis="x", pad=3 + 72 * strip_height(levels))
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
    axes: Axes, frame: pd.DataFrame, value: str, ends: Ends, *, log: bool = False, named: bool = True
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


def extension(values: Sequence[float] | pd.Series[float], ends: Ends) -> str:
    """At which ends a colour bar has arrows: where there are values beyond."""
    low, high = min(values) < ends.low, max(values) > ends.high
    return "both" if low and high else "min" if low else "max" if high else "neither"


def over_layers(axes: Axes, layers: int) -> None:
    """The x-axis of a panel of lines, which stands on one over a map: ticks without numbers."""
    layer_axis(axes, layers)
    axes.set_xlim(0.5, layers + 0.5)


def token_labels(pieces: Sequence[str]) -> list[str]:
    r"""A label for each token of a text: its number from 1 and its name.

    A token that begins a word loses its '▁', one that continues a word gets a '-' before it (where the tokenizer
    marks words at all). Spaces show as '␣', line breaks as '\n', signs that the font lacks as '\u65e5'.
    """
    marks_words = any(piece.startswith("▁") and piece.strip("▁") for piece in pieces)
    labels = []
    for number, piece in enumerate(pieces):
        name = _BYTE.sub(_printable_byte, piece)
        goes_on = marks_words and number > 0 and _is_of_word(name) and _is_of_word(pieces[number - 1][-1:])
        word = name[1:] if name.startswith("▁") and name.strip("▁") else name
        text = ("-" if goes_on else "") + word.replace("▁", "␣").replace(" ", "␣").replace("\n", "\\n")
        if len(text) > _LONGEST:
            text = text[: _LONGEST - 1] + "…"
        labels.append(f"{number + 1} {drawable(text)}")
    return labels


def _is_of_word(text: str) -> bool:
    """Whether it starts with a digit or a letter that has a case: scripts that write no spaces are not marked."""
    return text[:1].isdigit() or text[:1].lower() != text[:1].upper()


def drawable(text: str) -> str:
    """`text` with what the figures' font lacks spelled out, and dollar signs kept from starting a formula."""
    signs = _signs_of_font()
    spelled = "".join(sign if ord(sign) in signs else sign.encode("unicode_escape").decode() for sign in text)
    return spelled.replace("$", r"\$")


def _printable_byte(match: re.Match[str]) -> str:
    byte = int(match[1], 16)
    return chr(byte) if 0x20 <= byte < 0x7F or byte == 0x0A else match[0]


@functools.cache
def _signs_of_font() -> frozenset[int]:
    font = get_font(findfont(FontProperties(family="DejaVu Sans")))
    return frozenset(code for code in font.get_charmap() if code >= 0x20)
