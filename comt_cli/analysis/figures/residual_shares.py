"""Learned shares of residual connections over the depth of a network, one panel a share (SAS, 2019, Figure 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from comt_cli.analysis.depth_axis import block_axis, examples_of, mark_groups, stages_of
from comt_cli.analysis.images import EXAMPLES
from comt_cli.analysis.model_figure import ModelFigure
from comt_cli.analysis.shares import shares_of, summed_shares
from comt_cli.analysis.subject import Subject
from comt_cli.analysis.watch import watch
from comt_cli.errors import UserError
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.report.figures.style import OKABE_ITO, PAGE_WIDTH, ROUND, layer_ticks, page_figure, style

_TITLES = {
    "alpha": "α, of x",
    "beta": "β, of F(x)",
    "(1-alpha)(1-beta)": "(1−α)(1−β), of N(x + F)",
    "gamma": "γ, of N(x + F)",
    "gate": "gate: share of F(x)",
    "g": "g, of F(x)",
    "a": "a, of F(x)",
    "b": "b, of x",
    "scale": "scale of F(x)",
}
_MARKERS = "os^Dv"
_LEAST_SPAN = 0.1
"""A panel shows at least this much of the axis, so that rounding noise does not look like structure."""
_ALONE = 3.6
"""Inches of a figure with one panel."""


class ResidualShares(ModelFigure):
    """One panel a share: means over images or tokens, with bars from the 10th to the 90th percentile. All axes
    span as much, so that equal heights are equal changes, each about its own middle.

    Of an image classifier over its blocks, of a network of tokens over its residual adds in order of depth, stack by
    stack, with a colour and a mark for each branch.
    """

    name: ClassVar = "residual-shares"
    title: ClassVar = "Shares of the residual connections over depth"

    def suits(self, of: Subject) -> bool:
        return any(map(shares_of, _connections(of)))

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows with `share` (see `shares_of`), `mean`, `std`, `low`, `high` (10th and 90th percentile) over the inputs,
        and over pixels or channels that have a number each. Connections without a learned share have no row.

        Of an image classifier `block, stage` (from 1) come first, and `examples` last: how many of the first validation
        images there were. Of a network of tokens `stack, layer` (from 1) and `part` (the branch), and `tokens`: how
        many the stack read.

        Raises:
            UserError: no connection has learned a share (says what the model is); see `watched_images` and `watch`.
        """
        model, connections = of.model, _connections(of)
        if not self.suits(of):
            raise UserError(
                f"the residual connections of {model.name} have no learned shares: it holds {model.description}"
            )
        seen = 0

        def passes() -> Iterator[None]:
            nonlocal seen
            if not of.is_image_classifier:
                watch(model, of.observation.inputs)
                yield
                return
            for x_BCHW, labels_B in of.validation_images.first(EXAMPLES):
                of.validation_images.logits(x_BCHW)
                seen += len(labels_B)
                yield

        sums = summed_shares(connections, passes())
        stages = stages_of(model.model.settings.shape().blocks) if of.is_image_classifier else []
        rows: list[dict[str, Any]] = []
        for number, (connection, own) in enumerate(zip(connections, sums, strict=True)):
            if of.is_image_classifier:
                place: dict[str, Any] = {"block": number + 1, "stage": stages[number]}
                count = {"examples": seen}
            else:
                at, on = connection.site, of.observation
                place = {"stack": at.stack, "layer": at.layer + 1, "part": at.part}
                count = {"tokens": len(on.sequences[on.read_by(connection)].pieces)}
            rows += [{**place, "share": name, **each.moments(), **count} for name, each in own.items()]
        return pd.DataFrame(rows)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        inputs = "validation images" if "block" in frame else "the tokens (and channels)"
        said = [f"Means over {inputs}, with bars from the 10th to the 90th percentile."]
        if frame["share"].nunique() > 1:
            said.append("All axes span as much, each about its own middle.")
        if "block" in frame:
            return [*said, f"Over {frame['block'].nunique()} residual blocks: {_ranges(frame)}."]
        return said + [
            f"{str(stack).capitalize()}, {own['tokens'].iloc[0]} tokens, means at its "
            f"{len(own[['layer', 'part']].drop_duplicates())} residual adds: {_ranges(own)}."
            for stack, own in frame.groupby("stack", sort=False)
        ]

    def draw(self, frame: pd.DataFrame) -> Figure:
        of_blocks, shares = "block" in frame, list(dict.fromkeys(frame["share"]))
        limits = _limits(frame)
        spread = "; bars: 10 to 90 %" if (frame["high"] > frame["low"]).any() else ""
        with style():
            figure = page_figure(2.3 if of_blocks else 2.6, min(_ALONE + 1.8 * (len(shares) - 1), PAGE_WIDTH))
            row = figure.subplots(1, len(shares), squeeze=False)[0]
            for number, (axes, share) in enumerate(zip(row, shares, strict=True)):
                if of_blocks:
                    own = frame[frame["share"] == share].sort_values("block")
                    _line(axes, own.assign(place=own["block"]), OKABE_ITO[number])
                    block_axis(axes, own)
                else:
                    _lines_of_branches(axes, frame, share)
                axes.set_title(_TITLES.get(share, share), pad=13)
                axes.set_ylim(*limits[share])
                axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
            row[0].set_ylabel("factor")
            if not of_blocks:
                handles, labels = row[0].get_legend_handles_labels()
                named = dict(zip(labels, handles, strict=True))
                figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=len(named))
            over = f"residual block (mean over {examples_of(frame)} validation images" if of_blocks else (
                "layer (mean over the tokens"
            )  # fmt: skip
            figure.supxlabel(f"{over}{spread})", fontsize=8)
        return figure


def _connections(of: Subject) -> list[ResidualConnection]:
    model = of.model.model
    if of.is_image_classifier:
        return [block.connection for block in model.blocks]
    return [branch.connection for blocks in model.stacks.values() for block in blocks for branch in block.branches]


def _ranges(frame: pd.DataFrame) -> str:
    """The least and the greatest mean of each share."""
    means = frame.groupby("share", sort=False)["mean"]
    return ", ".join(f"{share} {own.min():.3g} to {own.max():.3g}" for share, own in means)


def _limits(frame: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """The ends of each share's axis: all span as much, each about its own middle."""
    own = frame.groupby("share")[["mean", "low", "high"]]
    ends = pd.DataFrame({"low": own.min().min(axis=1), "high": own.max().max(axis=1)})
    half = 0.58 * max(_LEAST_SPAN, float((ends["high"] - ends["low"]).max()))
    middles = (ends["low"] + ends["high"]) / 2
    return {str(share): (middle - half, middle + half) for share, middle in middles.items()}


def _line(axes: Axes, own: pd.DataFrame, colour: str, marker: str = "o", label: str = "") -> None:
    """The means over `place`, with bars between the percentiles, which a mean may lie beyond."""
    reach = [(own["mean"] - own["low"]).clip(lower=0), (own["high"] - own["mean"]).clip(lower=0)]
    axes.errorbar(
        own["place"], own["mean"], reach, color=colour, marker=marker, label=label, markersize=3, linewidth=0.8,
        elinewidth=0.7,
    )  # fmt: skip


def _lines_of_branches(axes: Axes, frame: pd.DataFrame, share: str) -> None:
    """One share over the residual adds: a line for each branch of each stack, with the layers' numbers in the middle of
    their own."""
    adds = frame[["stack", "layer", "part"]].drop_duplicates()
    adds = adds.assign(place=range(1, len(adds) + 1))
    in_stacks = [list(dict.fromkeys(own["part"])) for _, own in adds.groupby("stack", sort=False)]
    # As in the stack with the most branches: the others have fewer of the same.
    parts = list(dict.fromkeys(part for own in sorted(in_stacks, key=len, reverse=True) for part in own))
    placed = frame[frame["share"] == share].merge(adds)
    for number, part in enumerate(parts):
        for _, line in placed[placed["part"] == part].groupby("stack", sort=False):
            _line(axes, line, OKABE_ITO[number], _MARKERS[number % len(_MARKERS)], part)
    ticks: dict[float, int] = {}
    for _, own in adds.groupby("stack", sort=False):
        middles = (own.groupby("layer")["place"].min() + own.groupby("layer")["place"].max()) / 2
        shown = layer_ticks(int(own["layer"].max()))
        ticks |= {middle: int(str(layer)) for layer, middle in middles.items() if layer in shown}
    axes.set_xlim(0.4, len(adds) + 0.6)
    axes.grid(visible=False, axis="x")
    axes.set_xticks(list(ticks), [str(layer) for layer in ticks.values()])
    mark_groups(axes, {str(stack): own["place"] for stack, own in adds.groupby("stack", sort=False)})
