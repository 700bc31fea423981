"""Parts of the figures over layers and tokens: thin lines with their median, maps of token x layer under them, marks
for what lies far from everything else, and labels of tokens."""

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
from numpy.typing import NDArray

from comt_cli.report.figures.style import (
    OKABE_ITO,
    QUIET,
    ROUND,
    SEQUENCE,
    layer_axis,
    layer_ticks,
)

ROW = 0.118
"""Inches of a token's line in a map."""
READING = "Above a thin line a token and their median, below the map of token and layer."
"""The caption's sentence on how to read the lines and the map."""
MAX_LINES = 36
"""So many tokens get a line of their own, as many as an image of scenes has regions; the legend says how many the text
has."""
_MEDIAN = OKABE_ITO[0]
_SMALL = 6.5
_APART = 3
"""Of so many layers off the scale each has a line of its own beyond the frame; more of them share one."""
_LEVEL = 9.0  # points of such a line
_TAIL = 1 / 3  # at most such a share of the values may be off the scale, together
_DISTANCE = 0.5  # what is off the scale is farther from the rest than so many times the span of the rest
_DWARFS = 2.0
"""What is nearer to the rest than others that are off the scale is off it too if it is farther than so many times."""
_LONGEST = 14
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Ends:
    """The least and the greatest value on the scale; what is below or above stands beyond the frame."""

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
    """The number of first values, at most so many, that are far from the others: those before the first gap that is
    wide enough; more of them only where the next gap dwarfs what would be left."""
    tail = 0
    for cut in range(1, most + 1):
        gap, span = rising[cut] - rising[cut - 1], rising[-1] - rising[cut]
        if gap > least and gap > (_DWARFS if tail else _DISTANCE) * span:
            tail = cut
    return tail


def drawn_tokens(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first `MAX_LINES` tokens: those that are drawn."""
    return frame[frame["position"] < MAX_LINES].reset_index(drop=True)


def site_names(frame: pd.DataFrame) -> pd.Series[str]:
    """The name of each row's site, and where the frame tells stacks and branches (`stack`, `part`) apart, the branch
    before it, and the stack where there are several."""
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
    """The number of a text's tokens that are drawn, in words, if not all."""
    return "" if drawn == tokens else f" (the first {drawn} tokens of {tokens})"


def token_lines(axes: Axes, frame: pd.DataFrame, value: str) -> None:
    """One thin line a token over the layers, from rows `layer, position` and the column `value`, and their median."""
    table = frame.pivot(index="layer", columns="position", values=value).sort_index()
    axes.plot(table.index.to_numpy(), table.to_numpy(), color=QUIET, linewidth=0.5, alpha=0.8, zorder=1.5)
    axes.plot(table.index.to_numpy(), table.median(axis=1).to_numpy(), color=_MEDIAN, linewidth=1.4, marker="o",
              zorder=3, label="median over tokens")  # fmt: skip


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
    """Triangles beyond the frame for the layers that have values off the scale, each in a line of its own with their
    ends, or the farthest where `brief`; many layers share one line. Returns the inches they take."""
    inches = 0.0
    for sign, edge, mark, most in ((1, 1, "▲", "max"), (-1, 0, "▼", "min")):
        beyond = frame[frame[value] > ends.high] if sign > 0 else frame[frame[value] < ends.low]
        if beyond.empty:
            continue
        ranges = beyond.groupby("layer")[value].agg(["min", "max"]).sort_values(most, ascending=sign > 0)
        is_few = len(ranges) <= _APART  # the farthest last
        marks: list[tuple[str, float, int, str, int]] = []
        for level, (layer, line) in enumerate(ranges.iterrows()):
            place = float(str(layer))
            marks.append((mark, place, level if is_few else 0, "center", 0))
            if is_few:
                side = ("right", -6) if place > 0.6 * float(frame["layer"].max()) else ("left", 6)
                marks.append((f"{line[most]:.2g}" if brief else _span(line["min"], line["max"]), place, level, *side))
        if not is_few:
            counted = "" if brief else f"{len(ranges)} layers: "
            said = counted + _span(ranges["min"].min(), ranges["max"].max())
            marks.append((said, axes.get_xlim()[0], 1, "left", 0))
        for text, place, level, align, beside in marks:
            axes.annotate(text, (place, edge), xytext=(beside, sign * _LEVEL * (level + 0.8)),
                          xycoords=axes.get_xaxis_transform(), textcoords="offset points", ha=align,
                          va="center_baseline", fontsize=_SMALL, color=_MEDIAN, annotation_clip=False)  # fmt: skip
        points = ((len(ranges) if is_few else 2) + 0.4) * _LEVEL
        inches += points / 72
        if sign > 0:
            axes.set_title(axes.get_title(), pad=4 + points)
        else:
            axes.tick_params(axis="x", pad=3 + points)
    return inches


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
        text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
        signs = _signs_of_font()
        spelled = "".join(sign if ord(sign) in signs else sign.encode("unicode_escape").decode() for sign in text)
        labels.append(f"{number + 1} {spelled}".replace("$", r"\$"))  # which would start a formula
    return labels


def _is_of_word(text: str) -> bool:
    """Whether it starts with a digit or a letter that has a case: scripts that write no spaces are not marked."""
    return text[:1].isdigit() or text[:1].lower() != text[:1].upper()


def _printable_byte(match: re.Match[str]) -> str:
    byte = int(match[1], 16)
    return chr(byte) if 0x20 <= byte < 0x7F or byte == 0x0A else match[0]


@functools.cache
def _signs_of_font() -> frozenset[int]:
    font = get_font(findfont(FontProperties(family="DejaVu Sans")))
    return frozenset(code for code in font.get_charmap() if code >= 0x20)
