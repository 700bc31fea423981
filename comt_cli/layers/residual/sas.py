"""Self-Adaptive Scaling (SAS, 2019, Eq. 2 to 4): y = a x + b F + c N(x + F), c = (1 - a)(1 - b) or a gate of its own;
and the single gate of its Table 6: y = g F + (1 - g) x.

a, b and c are one number a token each, from gates of their own. As published, F reads the stream without a norm before
it: at a = b = 0 this is Post-LN. What the paper leaves open for feature maps [B, H, W, D] are arguments: whether the
gates read every pixel, or x and F averaged over the pixels, which gives one number an image; and what N is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from comt_cli.layers.learned import Affine
from comt_cli.layers.residual.base import Branch, NormedResidual, ResidualConnection, ResidualSite

GateKind = Literal["two-layer", "single-layer"]
Reads = Literal["pooled", "pixel"]


class ScalingGate(nn.Module):
    """[x; F], [B, T, 2 D] -> [B, T, 1]: sigmoid(tanh([x; F] W_f + b_f) W_ff + b_ff), or of the kind `single-layer`
    sigmoid([x; F] W + b) (SAS, Table 6); the last bias starts at `bias`."""

    def __init__(self, kind: GateKind, width: int, bias: float) -> None:
        super().__init__()
        self.hidden = Affine(2 * width, width) if kind == "two-layer" else None
        self.output = Affine(2 * width if self.hidden is None else width, 1, bias)

    def forward(self, both_BTd: Tensor) -> Tensor:
        """`both` is [x; F]."""
        return torch.sigmoid(self.output(both_BTd if self.hidden is None else torch.tanh(self.hidden(both_BTd))))


def both_read(x_BTD: Tensor, F_BTD: Tensor, reads: Reads) -> Tensor:
    """[x; F], the input of a gate, [B, T, 2 D]; with `pooled` the mean over the pixels, [B, 1, 1, 2 D]."""
    return torch.cat([as_read(x_BTD, reads), as_read(F_BTD, reads)], dim=-1)


def as_read(x_BTD: Tensor, reads: Reads) -> Tensor:
    """Input of a gate, of a map or of tokens: everything, or for `pooled` the mean over the pixels, [B, 1, 1, D]."""
    return x_BTD.mean(dim=tuple(range(1, x_BTD.ndim - 1)), keepdim=True) if reads == "pooled" else x_BTD


class SelfAdaptiveScaling(ResidualConnection):
    """y = a x + b F(x) + c N(x + F(x)), c = (1 - a)(1 - b), or from a third gate where `gamma` is `free`. `norm` makes
    N from the width, in place of the site's own."""

    name = "sas"
    ends_in_norm = True  # its third term has; the shares of the other two, the gates choose

    def __init__(
        self, site: ResidualSite, alpha_bias: float = 0.0, beta_bias: float = 0.0, *, gate: GateKind = "two-layer",
        reads: Reads = "pixel", norm: Callable[[int], nn.Module] | None = None,
        gamma: Literal["product", "free"] = "product", gamma_bias: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.reads = reads
        self.norm = site.norm() if norm is None else norm(site.width)
        self.alpha_gate, self.beta_gate = (ScalingGate(gate, site.width, bias) for bias in (alpha_bias, beta_bias))
        self.gamma_gate = ScalingGate(gate, site.width, gamma_bias) if gamma == "free" else None

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        F_BTD = branch(x_BTD)
        both_BTd = both_read(x_BTD, F_BTD, self.reads)
        a_BT1, b_BT1 = self.alpha_gate(both_BTd), self.beta_gate(both_BTd)
        c_BT1 = (1 - a_BT1) * (1 - b_BT1) if self.gamma_gate is None else self.gamma_gate(both_BTd)
        return a_BT1 * x_BTD + b_BT1 * F_BTD + c_BT1 * self.norm(x_BTD + F_BTD)


class GatedShare(NormedResidual):
    """y = g F(N(x)) + (1 - g) x, g one of SAS's gates, or with `transform` Highway's, which reads x alone."""

    def __init__(
        self, site: ResidualSite, gate: Literal["transform"] | GateKind = "two-layer", bias: float = -3.0,
        reads: Reads = "pixel",
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.reads, self.reads_x_alone = reads, gate == "transform"
        width = site.width
        self.gate = Affine(width, width, bias) if gate == "transform" else ScalingGate(gate, width, bias)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        F_BTD = branch(self.norm(x_BTD))
        if self.reads_x_alone:
            g = torch.sigmoid(self.gate(as_read(x_BTD, self.reads)))
        else:
            g = self.gate(both_read(x_BTD, F_BTD, self.reads))
        return x_BTD + g * (F_BTD - x_BTD)
