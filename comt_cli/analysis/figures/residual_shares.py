"""Learned weights of skip path and branch in residual connections, over the depth of a network, one panel per weight
(SAS, 2019, Figure 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from comt_cli.analysis.images import EXAMPLES, stages_of
from comt_cli.analysis.model_figure import MARKERS, ModelFigure, Subject, mark_groups
from comt_cli.analysis.observed import watch
from comt_cli.errors import UserError
from comt_cli.layers.residual import scaled
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.models.recorded import connections_of, recorded
from comt_cli.report.figures.style import OKABE_ITO, PAGE_WIDTH, ROUND, page_figure, style

_TITLES = {
    **{"alpha": "α, of x", "beta": "β, of F(x)", "(1-alpha)(1-beta)": "(1−α)(1−β), of N(x + F)"},
    **{"gamma": "γ, of N(x + F)", "gate": "gate: share of F(x)", "g": "g, of F(x)", "a": "a, of F(x)"},
    **{"b": "b, of x", "scale": "scale of F(x)"},
}
_LEAST_SPAN = 0.1
"""The least part of the axis that a panel shows, so that rounding noise does not look like structure."""
_MOST = 1 << 16
"""Numbers of a weight from which its percentiles are computed."""

Share = tuple[tuple[nn.Module, ...], Callable[..., Tensor]]
"""The gates that determine a connection's weight, and how."""


class ResidualShares(ModelFigure):
    """One panel per weight, over blocks or residual adds. All axes span the same length, each about its own middle, so
    that equal heights are equal changes."""

    name: ClassVar = "residual-shares"
    title: ClassVar = "Shares of the residual connections over depth"

    def suits(self, of: Subject) -> bool:
        return any(map(shares_of, _connections(of)))

    def frame(self, of: Subject) -> pd.DataFrame:
        """Rows with `share` (see `shares_of`), `mean`, `std`, `low`, `high` (10th and 90th percentile) over the inputs,
        and over pixels or channels with values of their own. For an image classifier `block, stage` (from 1) come
        first, and `examples`, the number of validation images, last; for a network of tokens `stack, layer` (from 1),
        `part` (the branch), and `tokens`, the number that the stack read. Raises `UserError` if no connection has
        learned a weight; see `WatchedImages` and `watch`."""
        known = {connection: shares_of(connection) for connection in _connections(of)}
        if not any(known.values()):
            raise UserError(f"{of.model.name} has no learned shares: it holds {of.model.description}")
        sums = {(connection, name): Sums() for connection, shares in known.items() for name in shares}
        gates = {gate for shares in known.values() for own, _ in shares.values() for gate in own}
        seen = 0
        with recorded(gates) as kept, torch.no_grad():
            for inputs in _passes(of):
                seen += inputs
                for (connection, name), found in sums.items():
                    own, factor = known[connection][name]
                    found.add(factor(*(kept[gate][1] for gate in own)))
        stages = dict(zip(known, stages_of(of.model), strict=True)) if of.is_image_classifier else {}
        numbers, rows = {connection: number for number, connection in enumerate(known, start=1)}, []
        for (connection, name), found in sums.items():
            row: dict[str, Any] = {"share": name, **found.moments()}
            if stages:
                row = {"block": numbers[connection], "stage": stages[connection], **row, "examples": seen}
            else:
                at, on = connection.site, of.observation
                tokens = len(on.sequences[on.read_by(connection)].pieces)
                row = {"stack": at.stack, "layer": at.layer + 1, "part": at.part, **row, "tokens": tokens}
            rows.append(row)
        return pd.DataFrame(rows)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        inputs = "validation images" if "block" in frame else "the tokens (and channels)"
        means = frame.groupby("share", sort=False)["mean"]
        ranges = ", ".join(f"{share} {own.min():.3g} to {own.max():.3g}" for share, own in means)
        return [f"Means over {inputs}, with bars from the 10th to the 90th percentile.", f"Means: {ranges}."]

    def draw(self, frame: pd.DataFrame) -> Figure:
        groups, keys = ("stage", ["block"]) if "block" in frame else ("stack", ["stack", "layer", "part"])
        place = frame.groupby(keys, sort=False).ngroup() + 1
        placed = frame.assign(place=place, branch=frame.get("part", ""), group=frame[groups].replace({1: "stage 1"}))
        shares = list(dict.fromkeys(frame["share"]))
        ends = frame.groupby("share")[["mean", "low", "high"]].agg(["min", "max"])
        low, high = ends.min(axis=1), ends.max(axis=1)
        half = 0.58 * max(_LEAST_SPAN, float((high - low).max()))
        with style():
            figure = page_figure(2.6, min(3.6 + 1.8 * (len(shares) - 1), PAGE_WIDTH))
            row = figure.subplots(1, len(shares), squeeze=False)[0]
            for axes, share in zip(row, shares, strict=True):
                own = placed[placed["share"] == share]
                for number, (branch, line) in enumerate(own.groupby("branch", sort=False)):
                    for _, each in line.groupby("stack" if groups == "stack" else "branch", sort=False):
                        reach = np.stack([each["mean"] - each["low"], each["high"] - each["mean"]]).clip(0)
                        axes.errorbar(
                            each["place"], each["mean"], reach, color=OKABE_ITO[number], label=str(branch),
                            marker=MARKERS[number % len(MARKERS)], markersize=3, linewidth=0.8, elinewidth=0.7,
                        )  # fmt: skip
                axes.set_xlim(0.4, place.max() + 0.6)
                axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
                axes.grid(visible=False, axis="x")
                mark_groups(axes, {str(name): own for name, own in placed.groupby("group", sort=False)["place"]})
                axes.set_title(_TITLES.get(share, share), pad=13)
                axes.set_ylim((low[share] + high[share]) / 2 - half, (low[share] + high[share]) / 2 + half)
                axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=ROUND))
            row[0].set_ylabel("factor")
            if groups == "stack":
                handles, labels = row[0].get_legend_handles_labels()
                named = dict(zip(labels, handles, strict=True))
                figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=len(named))
            over = "block (mean over validation images" if groups == "stage" else "add (mean over the tokens"
            figure.supxlabel(f"residual {over}; bars: 10 to 90 %)", fontsize=8)
        return figure


def _connections(of: Subject) -> list[ResidualConnection]:
    model = of.model.model
    return [block.connection for block in model.blocks] if of.is_image_classifier else connections_of(model)


def _passes(of: Subject) -> Iterator[int]:
    if of.is_image_classifier:
        for x_BCHW, labels_B in of.validation_images.first(EXAMPLES):
            of.validation_images.logits(x_BCHW)
            yield len(labels_B)
    else:
        watch(of.model, of.observation.inputs)
        yield 1


def shares_of(connection: ResidualConnection) -> Mapping[str, Share]:
    """The weights of a connection by name; empty if it has learned none.

    SAS: `alpha` of x, `beta` of F, and `(1-alpha)(1-beta)` of N(x + F), or `gamma` if it has a gate of its own.
    Highway, and one scaling gate: `gate` of F, the rest of x. GRC: `g` of F; ReZero: `a` of F; a learned scale: `scale`
    of F; x keeps 1. LAuReL: `a` of F and `b` of x.
    """
    itself, shares = torch.positive, dict[str, Share]()
    match connection:
        case scaled.SelfAdaptiveScaling(alpha_gate=alpha, beta_gate=beta, gamma_gate=gamma):
            shares = {"alpha": ((alpha,), itself), "beta": ((beta,), itself)}
            if gamma is None:
                shares["(1-alpha)(1-beta)"] = (alpha, beta), lambda a, b: (1 - a) * (1 - b)
            else:
                shares["gamma"] = (gamma,), itself
        case scaled.Highway(transform_gate=gate):
            shares["gate"] = (gate,), torch.sigmoid
        case scaled.GatedShare(gate=gate, reads_x_alone=is_raw):
            shares["gate"] = (gate,), torch.sigmoid if is_raw else itself
        case scaled.GatedResidual(gate=nn.Module() as gate):
            shares["g"] = (gate,), torch.sigmoid
        case scaled.LaurelRW(weights=numbers) | scaled.LaurelRWLR(weights=numbers):
            shares = {"a": ((numbers,), itemgetter(0)), "b": ((numbers,), itemgetter(1))}
        case scaled.ReZero(a=number):
            shares["a"] = (number,), itself
        case scaled.ScaledBranch(learned=nn.Module() as number):
            shares["scale"] = (number,), itself
    return shares


class Sums:
    """Mean and standard deviation of numbers that come in parts, summed in fp64 about the first part's mean, and 10th
    and 90th percentile of all numbers, or of `_MOST` drawn from them, always the same ones."""

    def __init__(self) -> None:
        self.count, self.shift, self.total, self.squares = 0, 0.0, 0.0, 0.0
        self.drawn, self.ranks = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
        self._chance = torch.Generator().manual_seed(0)

    def add(self, values: Tensor) -> None:
        numbers = values.cpu().double().flatten()
        # Each number has a random rank and the lowest stay: all numbers of all parts are equally likely to stay.
        ranks = torch.rand(len(numbers), generator=self._chance, dtype=torch.float64)
        self.drawn, self.ranks = torch.cat([self.drawn, numbers]), torch.cat([self.ranks, ranks])
        if len(self.ranks) > _MOST:
            self.ranks, kept = self.ranks.topk(_MOST, largest=False)
            self.drawn = self.drawn[kept]
        self.shift = self.shift if self.count else float(numbers.mean())
        self.count += numbers.numel()
        self.total += float((numbers - self.shift).sum())
        self.squares += float((numbers - self.shift).square().sum())

    def moments(self) -> dict[str, float]:
        """`mean` and `std` (population) of all numbers, and `low` and `high`, their 10th and 90th percentile."""
        mean = self.total / self.count
        std = max(self.squares / self.count - mean**2, 0.0) ** 0.5
        low, high = np.percentile(self.drawn.numpy(), [10, 90])
        return {"mean": self.shift + mean, "std": std, "low": float(low), "high": float(high)}
