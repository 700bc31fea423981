"""What the figures with one line a token share: the lines, and the legend that names them."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from comt_cli.report.figures.style import series_colours
from comt_cli.report.figures.tokens import MAX_LINES, token_labels

_MARKERS = ("o", "s", "^", "D", "v")


def drawn_tokens(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first `MAX_LINES` tokens: those that get a line."""
    return frame[frame["position"] < MAX_LINES].reset_index(drop=True)


def token_names(frame: pd.DataFrame) -> list[str]:
    """The names of the tokens, in the order of the text."""
    names: list[str] = frame.drop_duplicates("position").sort_values("position")["token"].tolist()
    return names


def token_lines(axes: Axes, frame: pd.DataFrame, value: str) -> None:
    """One line a token over the layers, from rows `layer, position` and the column `value`."""
    for look, (_, line) in zip(_looks(frame["position"].nunique()), frame.groupby("position"), strict=True):
        ordered = line.sort_values("layer")
        axes.plot(ordered["layer"].to_numpy(), ordered[value].to_numpy(), clip_on=False, **look)


def token_handles(frame: pd.DataFrame) -> list[Any]:
    """The legend's entries; colours agree with `token_lines`."""
    labels = token_labels(token_names(frame))
    return [Line2D([], [], label=label, **look) for look, label in zip(_looks(len(labels)), labels, strict=True)]


def _looks(count: int) -> list[dict[str, Any]]:
    """Colour and marker of each line: neighbours on the colour map differ in their markers."""
    return [
        {"color": colour, "marker": _MARKERS[number % len(_MARKERS)]}
        for number, colour in enumerate(series_colours(count))
    ]


def legend_title(drawn: int, tokens: int) -> str:
    """`token`, and how many of the text's are drawn if not all."""
    return "token" if drawn == tokens else f"token (first {drawn} of {tokens})"
