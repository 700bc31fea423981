"""Transponder's gates. Shapes: T tokens, D input width, N output width, r bottleneck width."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.gates import Bottleneck, static_gate, transponder_gate
from comt_cli.kernels.transponder import modulate
from comt_cli.layers.gates.base import Gate, Site, draw_gate_weight
from comt_cli.layers.initialise import Draw
from comt_cli.recipe.settings import GateInit

Granularity = Literal["scalar", "channel", "channel-scalar"]
"""One number a token; one a channel of the output; both, multiplied."""


class TransponderGate(Gate):
    """Transponder's modulator (Eq. 4, 5): `2 sigmoid(alpha B sigmoid(A x))` for each kind of factor.

    Of two kinds, one A serves both unless `separate`: only that adds the printed 1 % of parameters. alpha is kept
    positive as exp(log_alpha) and starts at 1; the paper does not say how it does. Not `learnable`, it stays 1.
    """

    factor_range = (0.0, 2.0)

    def __init__(
        self,
        site: Site,
        rank: int,
        init: GateInit,
        granularity: Granularity = "channel-scalar",
        *,
        learnable: bool = True,
        separate: bool = False,
    ) -> None:
        super().__init__()
        self.init, self.rank, self.learnable, self.separate = init, rank, learnable, separate
        self.kinds = granularity.split("-")
        bottlenecks = len(self.kinds) if separate else 1
        self.A = nn.Parameter(torch.empty(rank * bottlenecks, site.d_in))
        for kind in self.kinds:
            width = site.d_out if kind == "channel" else 1
            self.register_parameter(f"B_{kind}", nn.Parameter(torch.empty(width, rank)))
            if learnable:
                self.register_parameter(f"log_alpha_{kind}", nn.Parameter(torch.empty(())))

    def down_projection(self) -> Tensor:
        return self.A

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        assert u_Tr is not None
        parts = torch.split(u_Tr, self.rank, dim=-1) if self.separate else [u_Tr] * len(self.kinds)
        return {
            kind: transponder_gate(part_Tr, self._matrix(kind), self._alpha(kind))
            for kind, part_Tr in zip(self.kinds, parts, strict=True)
        }

    def forward(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        if len(self.kinds) == 1 or self.separate:
            return super().forward(z_TN, u_Tr)
        assert u_Tr is not None
        channel, scalar = ((self._matrix(kind), self._alpha(kind)) for kind in ("channel", "scalar"))
        return modulate(z_TN, u_Tr, *channel, *scalar)

    def bottleneck(self) -> Bottleneck:
        matrices = {kind: self._matrix(kind) for kind in self.kinds}
        if self.separate:  # each kind has its own half of u
            matrices["channel"] = F.pad(matrices["channel"], (0, self.rank))
            matrices["scalar"] = F.pad(matrices["scalar"], (self.rank, 0))
        log_alphas = {kind: self.get_parameter(f"log_alpha_{kind}") for kind in self.kinds if self.learnable}
        B, log_alpha = ((each.get("channel"), each.get("scalar")) for each in (matrices, log_alphas))
        return Bottleneck(*B, 2.0, *log_alpha)

    def _matrix(self, kind: str) -> Tensor:
        return self.get_parameter(f"B_{kind}")

    def _alpha(self, kind: str) -> Tensor:
        if not self.learnable:
            return torch.ones((), dtype=self.A.dtype, device=self.A.device)
        return self.get_parameter(f"log_alpha_{kind}").exp()

    def initialise(self, draw: Draw) -> None:
        draw_gate_weight(draw, self.A, "A", self.init)
        for kind in self.kinds:
            draw_gate_weight(draw, self._matrix(kind), f"B_{kind}", self.init)
            if self.learnable:
                nn.init.zeros_(self.get_parameter(f"log_alpha_{kind}"))


class StaticGate(Gate):
    """Transponder without context (section 4.6): `2 sigmoid(alpha beta1 beta2)`, the same for every token.

    beta1 is a number, beta2 one a channel. The paper does not say where they start: beta1 at 1 and beta2 at 0 make the
    factor 1, and leave beta2 a gradient (both at 0 would have none).
    """

    factor_range = (0.0, 2.0)

    def __init__(self, site: Site, *, learnable: bool = True) -> None:
        super().__init__()
        self.learnable = learnable
        self.beta1 = nn.Parameter(torch.empty(()))
        self.beta2 = nn.Parameter(torch.empty(site.d_out))
        if learnable:
            self.log_alpha = nn.Parameter(torch.empty(()))

    def down_projection(self) -> None:
        return None

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        alpha = self.log_alpha.exp() if self.learnable else torch.ones_like(self.beta1)
        return {"channel": static_gate(self.beta1, self.beta2, alpha)}

    def initialise(self, draw: Draw) -> None:
        nn.init.ones_(self.beta1)
        nn.init.zeros_(self.beta2)
        if self.learnable:
            nn.init.zeros_(self.log_alpha)
