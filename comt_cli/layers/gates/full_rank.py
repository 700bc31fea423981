"""Gates with a full matrix: sigmoid(x W^T), W of N x D. Shapes: T tokens, D input width, N output width, H heads."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from comt_cli.kernels.gates import full_rank_gate
from comt_cli.layers.gates.base import Gate, Site
from comt_cli.layers.initialise import Draw


class FullRankGate(Gate):
    """One factor in (0, 1) a channel, `sigmoid(x W^T)` (Qiu et al. 2025); near 1/2 at the start: W is N(0, 0.02^2)."""

    factor_range = (0.0, 1.0)

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(site.d_out, site.d_in))

    def down_projection(self) -> Tensor:
        return self.W

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        assert u_Tr is not None
        return {"channel": full_rank_gate(u_Tr)}

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.W, "W", 0.02)


class HeadGate(Gate):
    """One factor in (0, 1) a head, `sigmoid(x W^T)` with W of H x D (Qiu et al. 2025, head-wise)."""

    factor_range = (0.0, 1.0)

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.heads = site.heads
        self.W = nn.Parameter(torch.empty(site.heads, site.d_in))

    def down_projection(self) -> Tensor:
        return self.W

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        assert u_Tr is not None
        return {"head": full_rank_gate(u_Tr)}

    def forward(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        gamma_TH = self.values(u_Tr)["head"]
        z_THE = z_TN.view(*gamma_TH.shape, -1)
        return (z_THE * gamma_TH.unsqueeze(-1)).view_as(z_TN)

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.W, "W", 0.02)
