"""Residual adds with fixed factors, which differ in the position of their norms. N is a norm.

Language models keep their final norm after post-norm blocks, as in the scripts of the papers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.layers.gates import Site
from comt_cli.layers.initialise import xavier_std
from comt_cli.layers.learned import wide
from comt_cli.layers.residual.base import (
    Branch,
    NormedResidual,
    OutputAggregation,
    ResidualConnection,
    ResidualSite,
    State,
)

WRITES_TO_STREAM = ("o_proj", "down_proj")
_UNSCALED = ("q_proj", "k_proj")


class PreNorm(NormedResidual):
    """y = x + F(N(x))."""

    name = "pre-norm"

    fused = False
    """Whether the gated add is deferred to one kernel with the next norm."""

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return x_BTD + branch(self.norm(x_BTD))

    def step(self, state: State, branch: Branch) -> State:
        if not self.fused:
            return super().step(state, branch)
        x_BTD, h_BTD = state.normalised(self.norm)
        gated: Any = branch  # `models.base.GatedBranch` in every block with kernels
        last = gated.before_gate(h_BTD)
        return State(x_BTD + branch(h_BTD)) if last is None else State(x_BTD, deferred=last)


class PostNorm(NormedResidual):
    """y = N(x + F(x))."""

    name = "post-norm"
    ends_in_norm = True

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return self.norm(x_BTD + branch(x_BTD))


class SandwichLN(NormedResidual):
    """y = x + N2(F(N1(x)))."""

    name = "sandwich-ln"

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.branch_norm = site.norm()

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return x_BTD + self.branch_norm(branch(self.norm(x_BTD)))


class MixLN(NormedResidual):
    """Post-LN where `layer < fraction * layers`, else Pre-LN; layers count from 0, as in the authors' code. The product
    is rounded half up: 3 of 10 blocks, where Python's `round` gives 2."""

    name = "mix-ln"

    def __init__(self, site: ResidualSite, fraction: float = 0.25) -> None:
        super().__init__(site)
        self.ends_in_norm = site.layer < math.floor(fraction * site.layers + 0.5)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return self.norm(x_BTD + branch(x_BTD)) if self.ends_in_norm else x_BTD + branch(self.norm(x_BTD))


class HybridNorm(ResidualConnection):
    """y = x + F(x) for attention, whose queries, keys and values are normalised, and y = N(x) + F(N(x)) for other
    branches. `starred`: in the first block y = x + F(N(x)), also for attention."""

    name = "hybrid-norm"
    needs = ("heads",)
    norms_heads = True

    def __init__(self, site: ResidualSite, starred: bool = False) -> None:
        super().__init__(site)
        self.is_pre_norm = starred and site.layer == 0
        self.norm = site.norm() if self.is_pre_norm or site.part != "attention" else None

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        if self.norm is None:
            return x_BTD + branch(x_BTD)
        h_BTD = self.norm(x_BTD)
        return (x_BTD if self.is_pre_norm else h_BTD) + branch(h_BTD)


class LayerNormScaling(NormedResidual):
    """y = x + F(N(x) / sqrt(layer + 1)), `layer` from 0."""

    name = "layernorm-scaling"

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.scale = 1 / math.sqrt(site.layer + 1)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return x_BTD + branch(self.norm(x_BTD) * self.scale)


class ScaledInit(PreNorm):
    """y = x + F(N(x)). Projections that write to the stream start 1 / sqrt(additions) times as large. With the number
    of adds of the stack (2L; 3L in a decoder with cross-attention) its variance does not grow with depth."""

    name = "scaled-init"

    def __init__(self, site: ResidualSite, additions: int | None = None) -> None:
        super().__init__(site)
        self.additions = site.count if additions is None else additions

    def initial_std(self, site: Site, own: float) -> float:
        return own / math.sqrt(self.additions) if site.name in WRITES_TO_STREAM else own


class Keel(NormedResidual):
    """y = N_out(alpha x + F(N_in(x))), alpha the number of residual adds. The first add is plain Pre-LN. The second has
    alpha = 1, so that the embedding keeps its influence."""

    name = "keel"
    ends_in_norm = True

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.output_norm = site.norm() if site.index else None
        self.alpha = 1.0 if site.index == 1 else float(site.count)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        F_BTD = branch(self.norm(x_BTD))
        return x_BTD + F_BTD if self.output_norm is None else self.output_norm(self.alpha * x_BTD + F_BTD)


class DeepNorm(NormedResidual):
    """y = N(alpha x + F(x)), without a norm after the last block.

    With S adds in a stack, alpha = S^(1/4) and beta = (4 S)^(-1/4). An encoder of N blocks next to a decoder of M has
    0.81 (N^4 M)^(1/16) and 0.87 (N^4 M)^(-1/16). Glorot's initialisation has gain beta for value, output and
    feed-forward projections (in cross-attention the decoder's beta), and gain 1 for query and key.
    """

    name = "deepnorm"
    keeps_final_norm = False
    ends_in_norm = True

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.alpha, self.beta = site.count**0.25, (4 * site.count) ** -0.25
        if site.stack == "encoder" and "decoder" in site.depths:
            both = site.layers**4 * site.depths["decoder"]
            self.alpha, self.beta = 0.81 * both ** (1 / 16), 0.87 * both ** (-1 / 16)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return self.norm(self.alpha * x_BTD + branch(x_BTD))

    def initial_std(self, site: Site, own: float) -> float:
        return xavier_std(site.d_in, site.d_out, 1.0 if site.name in _UNSCALED else self.beta)


class DeepNormOfMixLNCode(DeepNorm):
    """y = N(2.8284271247461903 x + F(x)), as in the public scripts of Mix-LN and LayerNorm Scaling: alpha is the value
    for 32 layers at any depth, and the exponent of beta has the wrong sign. The final norm is kept."""

    name = "deepnorm-mixln-code"
    keeps_final_norm = True

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.alpha, self.beta = 2.8284271247461903, (4 * site.count) ** 0.25


class SiameseNorm(NormedResidual):
    """x <- N_post(x), z = F(N(x + N_pre(y))), x <- x + z / sqrt(2 (l + 1)) in block l from 0, y <- y + z. The state's
    stream is y, and its source x."""

    name = "siamese-norm"
    needs = ("states",)

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.pre_norm, self.post_norm = site.norm(), site.norm()
        self.divisor = math.sqrt(2 * (site.layer + 1))

    def output_aggregation(self, norm: Callable[[], nn.Module]) -> OutputAggregation:
        return SiameseAggregation(self.site, norm)

    def pair(self, state: State) -> tuple[Tensor, Tensor]:
        """x and y; at the start of a stack both are the initial stream."""
        return self.sources(state)[0], state.stream

    def read(self, state: State) -> Tensor:
        """x + N_pre(y), the input of the branch's norm."""
        x_BTD, y_BTD = self.pair(state)
        return self.post_norm(x_BTD) + self.pre_norm(y_BTD)

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Contributions of N_post(x) and N_pre(y) to the input of the branch's norm."""
        x_BTD, y_BTD = self.pair(state)
        return {"x-y": contributions(self.post_norm(x_BTD), self.pre_norm(y_BTD))}

    def side_by_side(self, state: State) -> Tensor | None:
        """Both streams after their norms. Before them one is much larger, whatever the directions."""
        if not state.sources:
            return None
        x_BTD, y_BTD = self.pair(state)
        return torch.stack([self.post_norm(x_BTD), self.pre_norm(y_BTD)], -2)

    def step(self, state: State, branch: Branch) -> State:
        x_BTD, y_BTD = self.pair(state)
        x_BTD = self.post_norm(x_BTD)
        z_BTD = branch(self.norm(x_BTD + self.pre_norm(y_BTD)))
        return State(y_BTD + z_BTD, (x_BTD + z_BTD / self.divisor,))


class SiameseAggregation(OutputAggregation):
    """N_x(x) + N_y(y)."""

    def __init__(self, site: ResidualSite, norm: Callable[[], nn.Module]) -> None:
        super().__init__(site)
        self.x_norm, self.y_norm = norm(), norm()

    def mixing(self, state: State) -> dict[str, Tensor]:
        return {"x-y": contributions(self.x_norm(state.sources[0]), self.y_norm(state.x))}

    def forward(self, state: State) -> Tensor:
        return self.x_norm(state.sources[0]) + self.y_norm(state.x)


def contributions(*parts_BTD: Tensor) -> Tensor:
    """<part, sum> / <sum, sum> of every part, [B, T, parts]: its contribution to the sum, projected on the sum. The
    values add up to 1 and are negative for a part that opposes the sum."""
    parts_BTPD = wide(torch.stack(parts_BTD, -2))
    sum_BTD = parts_BTPD.sum(-2)
    return (parts_BTPD @ sum_BTD.unsqueeze(-1)).squeeze(-1) / sum_BTD.square().sum(-1, keepdim=True)
