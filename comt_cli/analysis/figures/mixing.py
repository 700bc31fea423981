"""Mixing weights of residual connections and of attention, residual add by residual add: one map a kind of weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure
from torch import Tensor

from comt_cli.analysis.mixing import DISPERSION, READ_OUT, mixes, mixtures
from comt_cli.analysis.model_figure import ModelFigure
from comt_cli.analysis.subject import Subject
from comt_cli.analysis.watch import watch
from comt_cli.errors import UserError
from comt_cli.report.figures.style import OKABE_ITO, PAGE_WIDTH, page_figure, style

_SIAMESE = "x-y"
"""SiameseNorm's shares of its two streams."""
_MATRICES = ("mix", "write", "heads")
"""Weights with a line for every target."""
_COLOURS = "PuOr_r"
"""White is 0, and its two ends are told apart by the colour blind."""
_ABSENT = "#D0D0D0"
"""The colour where a residual add has no such source, which is no weight of 0."""
_LINEAR = 4
"""The greatest weight beyond which colours are logarithmic above 1: one large weight would make all others white."""
_NUMBERED = 40
"""Lines beyond which a number does not fit into each."""
_WIDEST = 16
"""Columns beyond which a map gets no wider: those of all heads would leave no place for the others."""
_TITLES = {
    "read": "read: share of\neach stream",
    "mix": "mix:\nnew stream ← stream",
    "write": "write: share of\nthe output",
    "attention": "attention over\nearlier outputs",
    "queries": "shares in\nthe queries",
    "keys": "shares in\nthe keys",
    "values": "shares in\nthe values",
    "heads": "keys and values:\nhead ← head",
    "first-own": "shares in\nthe values",
    "stream": "shares in\nthe stream",
    _SIAMESE: "share of x (blue),\nof y (orange)",
    DISPERSION: "dispersion of\nthe streams",
}
_NOTES = {
    "stream": "Shares in the stream are those behind the branch.",
    READ_OUT: "The read-out is what the final norm reads behind the last block.",
    "heads": "Heads that keys and values come from count from the first block's first head on.",
    _SIAMESE: "A branch reads s = N_post(x) + N_pre(y), the read-out N_x(x) + N_y(y): of the normed stream x and of "
    "the free one, y. The share of a part a of s is <a, s> / <s, s>, so that the two add up to 1; norms make both "
    "equally large but for what they learn, which alone moves the shares from one half.",
    DISPERSION: "Dispersion, on an axis of its own, is |H - mean| / |H| of the streams at a residual add (of "
    "SiameseNorm's, behind the norms through which they are read).",
}
"""Explanations of weights, by their name, and of the read-out."""
_SOURCES = {"first-own": ("first", "own"), _SIAMESE: ("x", "y")}
"""The names of sources that do not count from 0."""


class Mixing(ModelFigure):
    """One map a kind of weight: a line for every residual add, from the first at the top, and last what is read behind
    the last block; a column for every source, or for every pair of a target and a source. The mean over the tokens;
    white is 0, and all maps share their colours. On axes of their own are bars: the shares of SiameseNorm's two
    streams, which are all near one half, and the dispersion of streams, which is small beside weights."""

    name: ClassVar = "mixing"
    title: ClassVar = "Mixtures at every residual add"

    def suits(self, of: Subject) -> bool:
        return not of.is_image_classifier and mixes(of.model)

    def frame(self, of: Subject) -> pd.DataFrame:
        """The weights of all mixtures on the observed tokens, in the order of the network; empty where there are none
        at this depth.

        Rows `stack, layer` (from 1), `part` (the branch, or `READ_OUT`), `weight` (its name, or `DISPERSION`), `target`
        and `source` (from 0), `mean` and `std` over the tokens.

        Raises:
            UserError: nothing is mixed (says what the model is); see also `watch`.
        """
        model = of.model
        if not mixes(model):
            raise UserError(f"{model.name} mixes no streams, outputs or values: it holds {model.description}")
        rows = []
        for place in mixtures(model.model, lambda: watch(model, of.observation.inputs)):
            for name, weight in place.weights.items():
                numbers = _by_token(weight, 2 if name in _MATRICES else 1)
                means, spreads = numbers.mean(0), numbers.std(0, unbiased=False)
                for target in range(means.shape[0]):
                    for source in range(means.shape[1]):
                        number = means[target, source].item(), spreads[target, source].item()
                        rows.append((place.stack, place.layer + 1, place.part, name, target, source, *number))
        return pd.DataFrame(rows, columns=["stack", "layer", "part", "weight", "target", "source", "mean", "std"])

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        of_maps = frame[~frame["weight"].isin([_SIAMESE, DISPERSION])]["mean"].abs()
        said = ["A line is a residual add, from the first at the top; means over the tokens."]
        if len(of_maps):
            above = ", logarithmic above 1" if of_maps.max() > _LINEAR else ""
            said.append(
                "A column is a source (streams and outputs count from 0, the embedding being output 0), or target ← "
                f"source; one scale of colours{above}, white being 0 and grey no such source."
            )
        named = {*frame["weight"], *frame["part"]}
        said += [note for name, note in _NOTES.items() if name in named]
        return [*said, *_findings(frame)]

    def draw(self, frame: pd.DataFrame) -> Figure:
        named = frame.assign(add=_adds(frame))
        lines = list(dict.fromkeys(named["add"]))
        tables = {str(kind): _table(own, lines) for kind, own in named.groupby("weight", sort=False)}
        bars = {kind: tables.pop(kind) for kind in (_SIAMESE, DISPERSION) if kind in tables}
        with style():
            figure = page_figure(min(6.5, 1.3 + 0.16 * len(lines)), PAGE_WIDTH)
            widths = [2 + min(len(table.columns), _WIDEST) for table in tables.values()] + [6 for _ in bars]
            row = figure.subplots(1, len(widths), squeeze=False, sharey=True, width_ratios=widths)[0]
            for axes, kind in zip(row, (*tables, *bars), strict=True):
                axes.set_title(_TITLES.get(kind, kind), fontsize=7)
            if tables:
                _draw_maps(figure, row[: len(tables)], list(tables.values()))
            for axes, (kind, table) in zip(row[len(tables) :], bars.items(), strict=True):
                _draw_bars(axes, table, shares=kind == _SIAMESE)
            row[0].set_yticks(range(len(lines)), lines)
            row[0].set_ylim(len(lines) - 0.5, -0.5)
        return figure


def _by_token(weights: Tensor, dimensions: int) -> Tensor:
    """[tokens, targets, sources], one token where they do not depend on it."""
    weights = weights.double().cpu()
    if dimensions == 1:
        weights = weights.unsqueeze(-2)
    return weights.reshape(-1, *weights.shape[-2:])


def _findings(frame: pd.DataFrame) -> Iterator[str]:
    """The main numbers of each kind of weight."""
    for weight, own in frame.groupby("weight", sort=False):
        if weight == "mix":
            off = own.loc[own["target"] != own["source"], "mean"].abs()
            yield f"Off the diagonal, mixing matrices have {off.mean():.2g} on average and {off.max():.2g} at most."
        else:
            mean = own["mean"]
            yield f"{weight}: {mean.min():.2g} to {mean.max():.2g}, {mean.mean():.2g} on average."


def _draw_maps(figure: Figure, row: Sequence[Axes], tables: Sequence[pd.DataFrame]) -> None:
    """The maps, and right of everything the bar of their colours."""
    end = max(float(np.nanmax(np.abs(table.to_numpy()))) for table in tables)
    norm = SymLogNorm(1, vmin=-end, vmax=end) if end > _LINEAR else Normalize(-end, end)
    for axes, table in zip(row, tables, strict=True):
        drawn = axes.imshow(table.to_numpy(), cmap=_COLOURS, norm=norm, aspect="auto")
        axes.set_facecolor(_ABSENT)
        axes.grid(visible=False)
        step = max(1, len(table.columns) // 8)
        axes.set_xticks(range(0, len(table.columns), step), list(table.columns)[::step], rotation=60)
    bar = figure.colorbar(drawn, ax=figure.axes, location="right", pad=0.01, aspect=30)
    bar.set_label("weight, mean over the tokens")
    if end > _LINEAR:
        ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000) if tick <= end]
        signed = [*(-tick for tick in reversed(ticks)), 0, *ticks]
        bar.set_ticks(signed, labels=[f"{tick:g}" for tick in signed])
        bar.minorticks_off()


def _draw_bars(axes: Axes, table: pd.DataFrame, *, shares: bool) -> None:
    """A bar a residual add; of shares, which add up to 1, one behind the other, with the first one's number."""
    places, start = range(len(table)), np.zeros(len(table))
    for column, colour in zip(table.columns, OKABE_ITO, strict=False):
        axes.barh(places, table[column], height=0.7, left=start, color=colour)
        start = start + table[column].to_numpy()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="x", rotation=60)
    if not shares:
        axes.set_xlim(0, max(1.05 * float(table.max().max()), 1e-3))
        return
    axes.set_xlim(0, 1)
    if len(table) <= _NUMBERED:
        for place, number in zip(places, table[table.columns[0]], strict=True):
            axes.text(0.02, place, f"{number:.2f}", color="white", fontsize=6, va="center")


def _adds(frame: pd.DataFrame) -> pd.Series[str]:
    """The name of each row's residual add, with its stack where there are several."""
    layered = frame["layer"].astype(str) + " " + frame["part"]
    names = layered.where(frame["part"] != READ_OUT, READ_OUT)
    return frame["stack"] + " " + names if frame["stack"].nunique() > 1 else names


def _table(own: pd.DataFrame, lines: list[str]) -> pd.DataFrame:
    """Residual adds by sources, NaN where one has no such source."""
    kind = str(own["weight"].iloc[0])
    sources = own["source"].map(dict(enumerate(_SOURCES[kind]))) if kind in _SOURCES else own["source"].astype(str)
    column = own["target"].astype(str) + "←" + sources if own["target"].max() > 0 else sources
    wide = own.assign(column=column)
    order = list(dict.fromkeys(wide.sort_values(["target", "source"])["column"]))
    table: pd.DataFrame = wide.pivot(index="add", columns="column", values="mean")
    return table.reindex(index=lines, columns=order)
