"""Connections over many blocks: a middle block's stream is subtracted at the end (backout), or outputs of the first
half of blocks are added before those of the second half (skip gates). modded-nanogpt, 2024 to 2026, and nanochat.

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.learned import NO_DECAY, Constant, NarrowGate, factors, wide
from comt_cli.layers.residual.base import Branch, NormedResidual, OutputAggregation, ResidualSite, State


class Backout(NormedResidual):
    """y = x + F(N(x)); after the last block X_L - l X_m, with X_m the output of block m, from 1. l starts at `start`. m
    is the number of `blocks`, by default that of the first half and one more."""

    name = "backout"
    needs = ("states",)

    def __init__(self, site: ResidualSite, start: float = 0.2, blocks: int | None = None) -> None:
        super().__init__(site)
        self.start = start
        middle = min(site.layers // 2 + 1, site.layers) if blocks is None else blocks
        if middle > site.layers:
            said = f"blocks: the network has {site.layers} blocks; there is no output of block {middle}"
            raise UserError(said, "Use a smaller number, or leave it out.")
        self.is_middle = site.layer + 1 == middle and site.part == "mlp"

    def step(self, state: State, branch: Branch) -> State:
        y_BTD = self(state.stream, branch)
        return State(y_BTD, (y_BTD,) if self.is_middle else state.sources)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return x_BTD + branch(self.norm(x_BTD))

    def output_aggregation(self, norm: Callable[[], nn.Module]) -> OutputAggregation:
        return BackoutAggregation(self.site, self.start)


class BackoutAggregation(OutputAggregation):
    """X_L - l X_m. `offset` is l minus its start."""

    def __init__(self, site: ResidualSite, start: float) -> None:
        super().__init__(site)
        self.start = start
        self.offset = Constant(0.0, update_rule=NO_DECAY)

    def forward(self, state: State) -> Tensor:
        (middle_BTD,), (offset_1,) = state.sources, factors(self.offset())
        return (state.x - (self.start + offset_1) * middle_BTD).to(state.x.dtype)

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Weights of X_m and of X_L."""
        l_1 = self.start + wide(self.offset()).reshape(1)
        return {"middle-last": torch.cat([-l_1, torch.ones_like(l_1)])}


SkipGate = Literal["token", "scalar", "weight"]
CHANNELS = 12
"""Of the embedding, read by the gate."""


class SkipGates(NormedResidual):
    """y = x + F(N(x)). Before block i of L, from 1, in the second half, x <- x + g X_j, with X_j the output of block
    j = L + 1 - i; with an odd L the middle block has none. `gate`: g is a learned `weight`, 1 at the start; a `scalar`
    sigmoid(a), a = -1.5 at the start; or a number of each `token`, sigmoid(a) 2 sigmoid(w n), where n are the first
    `CHANNELS` channels of the embedding's RMSNorm without a gain and w starts at 0."""

    name = "skip-gates"
    needs = ("states",)

    def __init__(self, site: ResidualSite, gate: SkipGate = "token") -> None:
        super().__init__(site)
        half = site.layers // 2
        self.stores = site.part == "mlp" and site.layer < half
        self.is_weight = gate == "weight"
        self.start = 1.0 if self.is_weight else -1.5
        reads = not site.before and site.layer >= site.layers - half
        self.offset = Constant(0.0, update_rule=NO_DECAY) if reads else None  # of the weight, or of a, from its start
        self.gate = NarrowGate(site.width, 1, CHANNELS) if reads and gate == "token" else None

    def factor(self, embedding_BTD: Tensor) -> Tensor:
        """g, [1] or [B, T, 1]."""
        assert self.offset is not None
        (offset_1,) = factors(self.offset())
        if self.is_weight:
            return self.start + offset_1
        factor_1 = torch.sigmoid(self.start + offset_1)
        if self.gate is None:
            return factor_1
        return factor_1 * 2 * self.gate(F.rms_norm(embedding_BTD, embedding_BTD.shape[-1:]))

    def mixing(self, state: State) -> dict[str, Tensor]:
        """g and 1: weights of X_j and of the stream before the block."""
        if self.offset is None:
            return {}
        factor = self.factor(self.sources(state)[0])
        return {"skip-stream": torch.cat([factor, torch.ones_like(factor)], -1)}

    def step(self, state: State, branch: Branch) -> State:
        x_BTD, (embedding_BTD, *outputs) = state.stream, self.sources(state)
        if self.offset is not None:
            x_BTD = (x_BTD + self.factor(embedding_BTD) * outputs.pop()).to(x_BTD.dtype)
        y_BTD = x_BTD + branch(self.norm(x_BTD))
        return State(y_BTD, (embedding_BTD, *outputs, *([y_BTD] if self.stores else [])))
