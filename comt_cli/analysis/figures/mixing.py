"""Mixing weights of every residual add: of streams, earlier outputs, and keys and values of earlier blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure
from torch import Tensor

from comt_cli.analysis.model_figure import ModelFigure, Subject
from comt_cli.analysis.observed import watch
from comt_cli.errors import UserError
from comt_cli.layers.learned import wide
from comt_cli.layers.residual.base import OutputAggregation, ResidualConnection, State
from comt_cli.layers.shared_values import SharedValues
from comt_cli.models.base import Model
from comt_cli.models.recorded import connections_of, recorded, stacks_of
from comt_cli.report.figures.style import OKABE_ITO, PAGE_WIDTH, page_figure, style

READ_OUT = "read-out"
"""The part of what is read behind a stack's last block."""
DISPERSION = "dispersion"
"""Distance of the streams at a residual add from their mean, |H - mean| / |H|: 0 where all are one. SiameseNorm's two
streams are taken behind the norms that they are read through."""
_SIAMESE = "x-y"
"""SiameseNorm's shares of its two streams."""
_MATRICES = ("mix", "write", "heads")
"""Weights with a line for every target."""
_LINEAR = 4
"""The greatest weight beyond which colours are logarithmic above 1: one large weight would make all others white."""
_WIDEST = 16
"""Columns beyond which a map gets no wider: those of all heads would leave no place for the others."""
_NOTES = {
    "stream": "Shares in the stream are those behind the branch.",
    READ_OUT: "The read-out is what the final norm reads behind the last block.",
    "heads": "Heads that keys and values come from count from the first block's first head on.",
    _SIAMESE: "A branch reads s = N_post(x) + N_pre(y), the read-out N_x(x) + N_y(y); the share of a part a of s is "
    "<a, s> / <s, s>: of x blue, of y orange.",
    DISPERSION: "Dispersion is |H - mean| / |H| of the streams at a residual add.",
}
"""Explanations of weights, by their name, and of the read-out."""
_TITLES = {
    "read": "read: share of\neach stream", "mix": "mix:\nnew stream ← stream", "write": "write: share\nof the output",
    "attention": "attention over\nearlier outputs", "heads": "keys and values:\nhead ← head",
    "middle-last": "end: shares of\nthe two blocks", "skip-stream": "shares of the\nskip and stream",
    _SIAMESE: "share of x (blue),\nof y (orange)", DISPERSION: "dispersion of\nthe streams",
}  # fmt: skip
_SOURCES = {
    "first-own": ("first", "own"), "middle-last": ("middle", "last"), "skip-stream": ("skip", "stream"),
    _SIAMESE: ("x", "y"),
}  # fmt: skip
"""The names of sources that do not count from 0."""


class Mixed(NamedTuple):
    """The mixtures at one place of a network: weights by name, as `ResidualConnection.mixing`, and `DISPERSION`,
    [B, T, 1], where there are several streams. `layer` is from 0; a read-out's is the last."""

    stack: str
    layer: int
    part: str
    weights: dict[str, Tensor]


def _shared_values(model: Model) -> Iterator[tuple[str, int, SharedValues]]:
    """The modules that mix values of earlier blocks into attention, with their stack and block (from 0)."""
    for stack, blocks in stacks_of(model).items():
        for layer, block in enumerate(blocks):
            yield from ((stack, layer, module) for module in block.modules() if isinstance(module, SharedValues))


def mixtures(model: Model, run: Callable[[], object]) -> list[Mixed]:
    """All mixtures of a network when `run` runs it once, in the order of its blocks."""
    connections = connections_of(model)
    aggregations = [module for module in model.modules() if isinstance(module, OutputAggregation)]
    with recorded(connections, "step") as calls, recorded(aggregations) as read:
        run()
    with torch.no_grad():
        found = [Mixed(stack, layer, "attention", each.mixing()) for stack, layer, each in _shared_values(model)]
        for connection in connections:
            state: State = calls[connection][0][0]
            at, weights = connection.site, dict(connection.mixing(state))
            streams_BTnD = connection.side_by_side(state)
            if streams_BTnD is not None:
                streams_BTnD = wide(streams_BTnD)
                apart_BTnD = streams_BTnD - streams_BTnD.mean(-2, keepdim=True)
                weights[DISPERSION] = (apart_BTnD.norm(dim=(-1, -2)) / streams_BTnD.norm(dim=(-1, -2)))[..., None]
            found.append(Mixed(at.stack, at.layer, at.part, weights))
        for aggregation in aggregations:
            if aggregation in read:
                at, state = aggregation.site, read[aggregation][0][0]
                found.append(Mixed(at.stack, at.layer, READ_OUT, dict(aggregation.mixing(state))))
    order = list(stacks_of(model))
    return sorted(found, key=lambda place: (order.index(place.stack), place.layer))


class Mixing(ModelFigure):
    """One map a kind of weight, all of one scale of colours. On axes of their own are bars: the shares of SiameseNorm's
    two streams, which are all near one half, and the dispersion of streams, which is small beside weights."""

    name: ClassVar = "mixing"
    title: ClassVar = "Mixtures at every residual add"

    def suits(self, of: Subject) -> bool:
        if of.is_image_classifier:
            return False
        model = of.model.model
        mixes = any(type(each).mixing is not ResidualConnection.mixing for each in connections_of(model))
        ends = (type(each) for each in model.modules() if isinstance(each, OutputAggregation))
        mixes = mixes or any(kind.mixing is not OutputAggregation.mixing for kind in ends)
        return mixes or any(shared.mixing() for _, _, shared in _shared_values(model))

    def frame(self, of: Subject) -> pd.DataFrame:
        """The weights of all mixtures on the observed tokens, in the order of the network. Rows `stack, layer` (from
        1), `part` (the branch, or `READ_OUT`), `weight` (its name, or `DISPERSION`), `target` and `source` (from 0),
        `mean` and `std` over the tokens. Raises `UserError` where nothing is mixed; see also `watch`."""
        model = of.model
        if not self.suits(of):
            raise UserError(f"{model.name} mixes no streams, outputs or values: it holds {model.description}")
        rows = []
        for place in mixtures(model.model, lambda: watch(model, of.observation.inputs)):
            for name, weight in place.weights.items():
                targets = weight.double().cpu() if name in _MATRICES else weight.double().cpu().unsqueeze(-2)
                numbers = targets.reshape(-1, *targets.shape[-2:])  # of one token where they do not depend on it
                means, spreads = numbers.mean(0).numpy(), numbers.std(0, unbiased=False).numpy()
                for (target, source), mean in np.ndenumerate(means):
                    where = (place.stack, place.layer + 1, place.part, name, target, source)
                    rows.append((*where, mean, spreads[target, source]))
        return pd.DataFrame(rows, columns=["stack", "layer", "part", "weight", "target", "source", "mean", "std"])

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        named = {*frame["weight"], *frame["part"]}
        return [
            "A line is a residual add, from the first at the top; means over the tokens. A column is a source (streams "
            "and outputs count from 0, the embedding being output 0), or target ← source; white is 0, grey no source.",
            *(note for name, note in _NOTES.items() if name in named),
        ]

    def draw(self, frame: pd.DataFrame) -> Figure:
        layered = frame["layer"].astype(str) + " " + frame["part"]
        adds = layered.where(frame["part"] != READ_OUT, READ_OUT)
        named = frame.assign(add=frame["stack"] + " " + adds if frame["stack"].nunique() > 1 else adds)
        lines = list(dict.fromkeys(named["add"]))
        tables = {str(kind): _table(own, lines) for kind, own in named.groupby("weight", sort=False)}
        bars = {kind: tables.pop(kind) for kind in (_SIAMESE, DISPERSION) if kind in tables}
        with style():
            figure = page_figure(min(6.5, 1.3 + 0.16 * max(len(lines), 5)), PAGE_WIDTH)
            widths = [2 + min(len(table.columns), _WIDEST) for table in tables.values()] + [6 for _ in bars]
            row = figure.subplots(1, len(widths), squeeze=False, sharey=True, width_ratios=widths)[0]
            end = max((float(np.nanmax(np.abs(table.to_numpy()))) for table in tables.values()), default=1.0)
            norm = SymLogNorm(1, vmin=-end, vmax=end) if end > _LINEAR else Normalize(-end, end)
            for axes, (kind, table) in zip(row, {**tables, **bars}.items(), strict=True):
                axes.set_title(_TITLES.get(kind, f"shares in\nthe {kind}"), fontsize=7)
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
                shown = list(table.columns)[::step]
                turn = 60 if max(map(len, shown)) > 2 else 0
                axes.set_xticks(range(0, len(table.columns), step), shown, rotation=turn)
            if tables:
                ticks = [-end, -1, 0, 1, end] if end > _LINEAR else None
                figure.colorbar(drawn, ax=figure.axes, location="right", pad=0.01, aspect=30, label="mean weight",
                                ticks=ticks, format="%.2g")  # fmt: skip
            row[0].set_yticks(range(len(lines)), lines)
            figure.supxlabel("source, or target ← source" if tables else "", fontsize=8)
            row[0].set_ylim(len(lines) - 0.5, -0.5)
        return figure


def _table(own: pd.DataFrame, lines: list[str]) -> pd.DataFrame:
    """Residual adds by sources, NaN where one has no such source."""
    kind = str(own["weight"].iloc[0])
    sources = own["source"].map(dict(enumerate(_SOURCES[kind]))) if kind in _SOURCES else own["source"].astype(str)
    column = own["target"].astype(str) + "←" + sources if own["target"].max() > 0 else sources
    wider = own.assign(column=column)
    order = list(dict.fromkeys(wider.sort_values(["target", "source"])["column"]))
    table: pd.DataFrame = wider.pivot(index="add", columns="column", values="mean")
    return table.reindex(index=lines, columns=order)
