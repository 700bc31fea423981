"""Dense connections over depth: residual streams that are learned sums of block outputs, with X_0 the embedding and X_i
the output of block i.

Start lambdas (nanochat, Karpathy 2026), DenseFormer (Pagliardini et al. 2024) and MUDDFormer (Xiao et al. 2025).
Shapes: B batch, T tokens, D width, C mixtures, J sources, K hidden width. Weights and sums are computed in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.kernels.gates import no_autocast
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import NO_DECAY, Constant, UpdateRule, factors, wide
from comt_cli.layers.residual.base import Branch, NormedResidual, OutputAggregation, ResidualSite, State
from comt_cli.layers.roles import Role

MIXTURES = 4
"""Of MUDDFormer: queries, keys, values and stream."""


class StartLambdas(NormedResidual):
    """x <- r x + m x0 at the first add of a block; y = x + F(N(x)) at every add. x0 is the embedding or, if
    `normalised` as published, its RMSNorm without a gain; the stream then also starts there.

    `start`: `identity` has r = 1 and m = 0; `graded` has r from 1.15 down to 1.05 and m from 0.2 down to 0.05 over the
    blocks. `rate` is the learning rate of m relative to the run's.
    """

    name = "start-lambdas"
    needs = ("states",)

    def __init__(
        self, site: ResidualSite, start: Literal["identity", "graded"] = "identity", *, normalised: bool = True,
        rate: float = 100.0,
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.begins_stack, self.normalised = site.index == 0, normalised
        self.r = self.m = None
        if not site.before:
            down = site.layer / max(1, site.layers - 1)
            self.first_r, first_m = (1.15 - 0.1 * down, 0.2 - 0.15 * down) if start == "graded" else (1.0, 0.0)
            self.r = Constant(0.0)  # added to `first_r`
            self.m = Constant(first_m, update_rule=UpdateRule(rate, decays=False))

    def mixing(self, state: State) -> dict[str, Tensor]:
        """m and r, which weight the stream before this block."""
        if self.r is None or self.m is None:
            return {}
        return {"stream": torch.stack([wide(self.m()), self.first_r + wide(self.r())])}

    def step(self, state: State, branch: Branch) -> State:
        x_BTD = state.stream
        if self.begins_stack and self.normalised:
            x_BTD = F.rms_norm(x_BTD, x_BTD.shape[-1:])
        sources = (x_BTD,) if self.begins_stack else self.sources(state)
        if self.r is not None and self.m is not None:
            (r_1,), (m_1,) = factors(self.r()), factors(self.m())
            x_BTD = ((self.first_r + r_1) * x_BTD + m_1 * sources[0]).to(x_BTD.dtype)
        return State(x_BTD + branch(self.norm(x_BTD)), sources)


class DenseFormer(NormedResidual):
    """y = x + F(N(x)); after the last add of block i the stream is sum_j a_ij X_j, j = 0 ... i. `DWA` is a_ij minus its
    start, a_ii = 1 and 0 elsewhere (Pre-LN). Dilation k mixes every k-th X before the newest, period p each p-th
    block."""

    name = "denseformer"
    needs = ("states",)

    def __init__(self, site: ResidualSite, dilation: int = 1, period: int = 1) -> None:
        super().__init__(site)
        if site.layers // period * period < dilation:
            raise UserError(
                f"period {period}, dilation {dilation}: with {site.layers} blocks no mixture has an earlier output",
                "The last multiple of period up to the number of blocks must be at least dilation.",
            )
        block = site.layer + 1  # the paper's i
        self.mixed = [j for j in range(block + 1) if j % dilation == block % dilation]
        self.ends_block = site.part == "mlp"
        mixes = self.ends_block and block % period == 0
        self.DWA = Constant(0.0, len(self.mixed), update_rule=NO_DECAY) if mixes else None

    def mixing(self, state: State) -> dict[str, Tensor]:
        """a, of the stream after this block; 0 for outputs that are left out."""
        if self.DWA is None:
            return {}
        weights = torch.zeros(self.mixed[-1] + 1)
        weights[self.mixed] = self.DWA().detach().float().cpu()
        weights[-1] += 1
        return {"stream": weights}

    def step(self, state: State, branch: Branch) -> State:
        x_BTD, sources = state.stream, self.sources(state)
        y_BTD = x_BTD + branch(self.norm(x_BTD))
        if not self.ends_block:
            return State(y_BTD, sources)
        sources = (*sources, y_BTD)
        if self.DWA is not None:
            y_BTD = weighted_sum(y_BTD, factors(self.DWA()), [sources[j] for j in self.mixed])
        return State(y_BTD, sources)


class DenseWeights(Initialised):
    """A = GELU(N(X) W1) W2 + a of MUDDFormer, a minus its start: X [B, T, D] -> [B, T, C, J], in fp32. N has no gain,
    W1 is [D, K] and W2 [K, C J], K = 4 J. W2 starts at 0."""

    role: Role = "gate"

    def __init__(self, width: int, mixtures: int, sources: int) -> None:
        super().__init__()
        self.shape = mixtures, sources
        K = MIXTURES * sources
        self.W1, self.W2 = nn.Parameter(torch.empty(K, width)), nn.Parameter(torch.empty(mixtures * sources, K))
        self.a = Constant(0.0, mixtures * sources, update_rule=NO_DECAY)

    def forward(self, x_BTD: Tensor) -> Tensor:
        with no_autocast(x_BTD):
            hidden_BTK = F.gelu(F.linear(F.rms_norm(wide(x_BTD), x_BTD.shape[-1:]), wide(self.W1)))
            return (F.linear(hidden_BTK, wide(self.W2)) + self.a()).unflatten(-1, self.shape)

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.W1, "W1", self.W1.shape[1] ** -0.5)
        nn.init.zeros_(self.W2)


class MultiwayDense(NormedResidual):
    """y = x + F(N(x)). From the second block on, attention has separate q/k/v inputs, each with its own norm. The
    mixtures follow the block's last add; a starts as 1 at X_i alone, which is Pre-LN. After the last block only the
    stream is mixed, with W1 as wide as elsewhere. With `last`, mixtures follow only so many blocks at the end."""

    name = "mudd"
    needs = ("states", "values")

    def __init__(self, site: ResidualSite, last: int | None = None) -> None:
        super().__init__(site)
        if last is not None and last > site.layers:
            said = f"last: the network has {site.layers} blocks; there are no {last} last ones"
            raise UserError(said, "Use a smaller number, or leave it out: then mixtures follow every block.")
        first = 0 if last is None else site.layers - last
        if site.part == "attention" and site.layer > first:  # `norm` is the queries' norm
            self.key_norm, self.value_norm = site.norm(), site.norm()
        self.ends_block, mixtures = site.part == "mlp", 1 if site.index == site.count - 1 else MIXTURES
        mixes = self.ends_block and site.layer >= first
        self.dense = DenseWeights(site.width, mixtures, site.layer + 2) if mixes else None

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Weight of each source in the inputs of every block after the first."""
        if state.weights is None:
            return {}
        return dict(zip(("queries", "keys", "values", "stream"), _mixing_weights(state).unbind(-2), strict=True))

    def output_aggregation(self, norm: Callable[[], nn.Module]) -> OutputAggregation:
        return MultiwayAggregation(self.site)

    def step(self, state: State, branch: Branch) -> State:
        x_BTD, sources = state.stream, self.sources(state)
        if state.qkv is None:
            y_BTD = x_BTD + branch(self.norm(x_BTD))
        else:
            queries, keys, values = state.qkv
            y_BTD = x_BTD + branch(self.norm(queries), self.key_norm(keys), self.value_norm(values))
        sources = (*sources, y_BTD) if self.ends_block else sources
        if self.dense is None:
            return State(y_BTD, sources)
        weights_BTCJ = self.dense(y_BTD)
        mixed = [
            weighted_sum(y_BTD, [weight_BT[..., None] for weight_BT in weights_BTJ.unbind(-1)], sources)
            for weights_BTJ in weights_BTCJ.unbind(-2)
        ]
        queries, keys, values, stream = mixed if len(mixed) > 1 else MIXTURES * mixed
        return State(stream, sources, qkv=(queries, keys, values), weights=weights_BTCJ.detach())


class MultiwayAggregation(OutputAggregation):
    """Stream mixed by the last add, with that connection's parameters. This module has none."""

    def mixing(self, state: State) -> dict[str, Tensor]:
        return {"stream": _mixing_weights(state).squeeze(-2)}

    def forward(self, state: State) -> Tensor:
        return state.stream


def weighted_sum(start_BTD: Tensor, weights: Sequence[Tensor], sources: Sequence[Tensor]) -> Tensor:
    """start + sum_j weights_j sources_j, [B, T, D], summed in fp32, returned in the type of `start`."""
    sum_BTD = wide(start_BTD)
    for weight, source_BTD in zip(weights, sources, strict=True):
        sum_BTD = sum_BTD + weight * source_BTD
    return sum_BTD.to(start_BTD.dtype)


def _mixing_weights(state: State) -> Tensor:
    """A, [B, T, mixtures, sources], including its static start."""
    assert state.weights is not None
    return state.weights + F.one_hot(torch.tensor(len(state.sources) - 1)).to(state.weights)
