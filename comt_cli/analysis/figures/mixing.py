"""Mixing weights of residual connections and of attention, residual add by residual add: one map a kind of weight."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure

from comt_cli.analysis.mixing import DISPERSION, READ_OUT, mixes, mixtures
from comt_cli.analysis.model_figure import ModelFigure
from comt_cli.analysis.observed import watch
from comt_cli.analysis.subject import Subject
from comt_cli.errors import UserError
from comt_cli.report.figures.style import OKABE_ITO, PAGE_WIDTH, page_figure, style

_SIAMESE = "x-y"
"""SiameseNorm's shares of its two streams."""
_MATRICES = ("mix", "write", "heads")
"""Weights with a line for every target."""
_LINEAR = 4
"""The greatest weight beyond which colours are logarithmic above 1: one large weight would make all others white."""
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
    _SIAMESE: "A branch reads s = N_post(x) + N_pre(y), the read-out N_x(x) + N_y(y); the share of a part a of s is "
    "<a, s> / <s, s>.",
    DISPERSION: "Dispersion is |H - mean| / |H| of the streams at a residual add.",
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
                targets = weight.double().cpu() if name in _MATRICES else weight.double().cpu().unsqueeze(-2)
                numbers = targets.reshape(-1, *targets.shape[-2:])  # of one token where they do not depend on it
                means, spreads = numbers.mean(0), numbers.std(0, unbiased=False)
                for target in range(means.shape[0]):
                    for source in range(means.shape[1]):
                        number = means[target, source].item(), spreads[target, source].item()
                        rows.append((place.stack, place.layer + 1, place.part, name, target, source, *number))
        return pd.DataFrame(rows, columns=["stack", "layer", "part", "weight", "target", "source", "mean", "std"])

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        named = {*frame["weight"], *frame["part"]}
        said = [
            "A line is a residual add, from the first at the top; means over the tokens. A column is a source (streams "
            "and outputs count from 0, the embedding being output 0), or target ← source; white is 0, grey no source.",
            *(note for name, note in _NOTES.items() if name in named),
        ]
        for weight, own in frame.groupby("weight", sort=False):
            mean = own.loc[own["target"] != own["source"], "mean"].abs() if weight == "mix" else own["mean"]
            off = " off the diagonal" if weight == "mix" else ""
            said.append(f"{weight}{off}: {mean.min():.2g} to {mean.max():.2g}, {mean.mean():.2g} on average.")
        return said

    def draw(self, frame: pd.DataFrame) -> Figure:
        named = frame.assign(add=_adds(frame))
        lines = list(dict.fromkeys(named["add"]))
        tables = {str(kind): _table(own, lines) for kind, own in named.groupby("weight", sort=False)}
        bars = {kind: tables.pop(kind) for kind in (_SIAMESE, DISPERSION) if kind in tables}
        with style():
            figure = page_figure(min(6.5, 1.3 + 0.16 * len(lines)), PAGE_WIDTH)
            widths = [2 + min(len(table.columns), _WIDEST) for table in tables.values()] + [6 for _ in bars]
            row = figure.subplots(1, len(widths), squeeze=False, sharey=True, width_ratios=widths)[0]
            end = max((float(np.nanmax(np.abs(table.to_numpy()))) for table in tables.values()), default=1.0)
            norm = SymLogNorm(1, vmin=-end, vmax=end) if end > _LINEAR else Normalize(-end, end)
            for axes, (kind, table) in zip(row, {**tables, **bars}.items(), strict=True):
                axes.set_title(_TITLES.get(kind, kind), fontsize=7)
                if kind in bars:
                    start = np.zeros(len(table))
                    for column, colour in zip(table.columns, OKABE_ITO, strict=False):
                        axes.barh(range(len(table)), table[column], height=0.7, left=start, color=colour)
                        start = start + table[column].to_numpy()
                    axes.grid(visible=False, axis="y")
                    axes.tick_params(axis="x", rotation=60)
                    continue
                drawn = axes.imshow(table.to_numpy(), cmap="PuOr_r", norm=norm, aspect="auto")
                axes.set_facecolor("#D0D0D0")  # where a residual add has no such source
                axes.grid(visible=False)
                step = max(1, len(table.columns) // 8)
                axes.set_xticks(range(0, len(table.columns), step), list(table.columns)[::step], rotation=60)
            if tables:
                label = "weight, mean over the tokens"
                figure.colorbar(drawn, ax=figure.axes, location="right", pad=0.01, aspect=30, label=label)
            row[0].set_yticks(range(len(lines)), lines)
            row[0].set_ylim(len(lines) - 0.5, -0.5)
        return figure


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
