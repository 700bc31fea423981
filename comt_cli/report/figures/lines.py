"""Parts of the figures over layers and tokens: thin lines with their median, maps of token x layer under them, scales
that outliers do not rule, and labels of tokens."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LogNorm, Normalize
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from comt_cli.report.figures.style import OKABE_ITO, QUIET, ROUND, SEQUENCE, layer_axis, layer_ticks

ROW = 0.118  # inches of a token's line in a map
READING = "Above a thin line a token and their median, below the map of token and layer; far values share a colour."
"""The caption's sentence on how to read the lines and the map."""
MAX_LINES = 36
"""So many tokens get a line of their own, as many as an image of scenes has regions; the legend says how many the text
has."""
_MEDIAN = OKABE_ITO[0]
_SMALL = 6.5
_TAIL = 1 / 3  # at most such a share of the values may be off the scale, together
_DISTANCE = 0.5  # what is off the scale is farther from the rest than so many times the span of the rest
_DWARFS = 2.0
"""What is nearer to the rest than others that are off the scale is off it too if it is farther than so many times."""
_LONGEST = 14
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Ends(NamedTuple):
    """The least and the greatest value on the scale."""

    low: float
    high: float


def robust_ends(values: Sequence[float] | NDArray[Any], *, log: bool = False, tail: float = _TAIL) -> Ends:
    """The ends of a scale that a few outliers do not rule.

    From either side at most the share `tail` of the values is left out, and only what a gap parts from the others that
    is wider than half of what those span: of values that run on evenly none is.
    """
    given = np.sort(np.asarray(values, dtype=float))
    given = given[np.isfinite(given) & ((given > 0) if log else True)]
    if not given.size:
        return Ends(0.0, 1.0)
    seen = np.log(given) if log else given
    least = 1e-3 * (1.0 if log else float(np.abs(seen).max()))  # rounding noise is no gap
    most = int(len(seen) * tail)
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


def shown_tokens(drawn: int, tokens: int) -> str:
    """The number of a text's tokens that are drawn, in words, if not all."""
    return "" if drawn == tokens else f" (the first {drawn} tokens of {tokens})"


def draw_tokens(
    panels: Sequence[Axes], frame: pd.DataFrame, value: str, ends: Ends, marks: Mapping[float, str], *,
    whole: Ends, log: bool = False, least: float = 0.0, names_tokens: bool = True, names_marks: bool = True,
) -> AxesImage:  # fmt: skip
    """Draw the column `value` of rows `layer, position, token` into two panels, one above the other; returns the map.

    Above is a thin line a token over the layers and their median, on an axis between the ends of the `whole` that spans
    at least `least` (so that rounding noise does not look like structure), with grey lines at those of the `marks` in
    sight, by name. Below is a map of token x layer, the text from top to bottom, with colours between `ends`.
    """
    above, below = panels
    table = frame.pivot(index="layer", columns="position", values=value).sort_index()
    layers = table.index.to_numpy()
    above.plot(layers, table.to_numpy(), color=QUIET, linewidth=0.5, alpha=0.8, zorder=1.5)
    above.plot(layers, table.median(axis=1).to_numpy(), color=_MEDIAN, linewidth=1.4, marker="o", zorder=3,
               label="median over tokens")  # fmt: skip
    _value_axis(above, whole, log=log, least=least)
    layer_axis(above, int(layers.max()))
    above.set_xlim(0.5, int(layers.max()) + 0.5)
    low, high = above.get_ylim()
    for mark, words in marks.items():
        if low < mark < high:
            above.axhline(mark, color="#606060", linewidth=0.7, linestyle=":", zorder=1)
            note = above.annotate(words if names_marks else "", (1, mark), xycoords=above.get_yaxis_transform(),
                                  xytext=(2, 0), textcoords="offset points", va="center", fontsize=_SMALL,
                                  color="#606060", annotation_clip=False)  # fmt: skip
            note.set_in_layout(False)  # it has room beside the colour bar of the map
    norm: Any = LogNorm(ends.low, ends.high) if log and ends.low > 0 else Normalize(ends.low, ends.high)
    edges = (layers.min() - 0.5, layers.max() + 0.5, table.shape[1] - 0.5, -0.5)
    image = below.imshow(
        table.to_numpy().T, aspect="auto", extent=edges, cmap=SEQUENCE, norm=norm, interpolation="nearest"
    )
    below.grid(visible=False)
    below.set_xticks(layer_ticks(int(layers.max())))
    below.set_yticks([])
    if names_tokens:
        names = frame.drop_duplicates("position").sort_values("position")["token"].tolist()
        below.set_yticks(range(len(names)), token_labels(names), fontsize=6)
        below.tick_params(axis="y", length=0, pad=2)
    return image


def value_bar(
    figure: Any, image: Any, panels: Any, values: pd.Series[float], ends: Ends, label: str, *, pad: float
) -> Colorbar:
    """A colour bar, with arrows where there are values beyond the `ends`."""
    low, high = values.min() < ends.low, values.max() > ends.high
    extend = "both" if low and high else "min" if low else "max" if high else "neither"
    bar: Colorbar = figure.colorbar(image, ax=panels, pad=pad, aspect=30, extend=extend, extendfrac=0.04, label=label)
    return bar


def _value_axis(axes: Axes, ends: Ends, *, log: bool, least: float) -> None:
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


def token_labels(pieces: Sequence[str]) -> list[str]:
    r"""A label for each token of a text: its number from 1 and its name.

    A token that begins a word loses its '▁', one that continues a word gets a '-' before it (where the tokenizer
    marks words at all). Spaces show as '␣', line breaks as '\n', signs that the font lacks as '\u65e5'.
    """
    marks_words = any(piece.startswith("▁") and piece.strip("▁") for piece in pieces)
    labels, signs = [], _signs_of_font()
    for number, piece in enumerate(pieces):
        name = _BYTE.sub(_printable_byte, piece)
        goes_on = marks_words and number > 0 and _is_of_word(name) and _is_of_word(pieces[number - 1][-1:])
        word = name[1:] if name.startswith("▁") and name.strip("▁") else name
        text = ("-" if goes_on else "") + word.replace("▁", "␣").replace(" ", "␣").replace("\n", "\\n")
        text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
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
