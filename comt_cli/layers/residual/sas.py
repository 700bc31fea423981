"""Self-Adaptive Scaling (SAS, 2019, Eq. 2 to 4): y = a x + b F + c N(x + F), c = (1 - a)(1 - b) or a gate of its own;
and the single gate of its Table 6: y = g F + (1 - g) x.

a, b and c are one number a token each, from gates of their own: sigmoid(tanh([x; F] W_f + b_f) W_ff + b_ff), with W_f
of 2D x D and W_ff of D x 1. As published, F reads the stream without a norm before it: at a = b = 0 this is Post-LN.

What the paper leaves open for feature maps [B, H, W, D] are arguments: whether the gates read every pixel, or x and F
averaged over the pixels, which gives one number an image; and what N is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from comt_cli.layers.learned import Affine
from comt_cli.layers.residual.base import Branch, ResidualConnection, ResidualSite

GateKind = Literal["two-layer", "single-layer"]
Reads = Literal["pooled", "pixel"]
Share = Literal["alpha", "beta", "gamma"]


class ScalingGate(nn.Module):
    """sigmoid(tanh([x; F] W_f + b_f) W_ff + b_ff): two [B, T, D] -> [B, T, 1]; b_ff starts at `bias`."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.hidden = Affine(2 * width, width)
        self.output = Affine(width, 1, bias)

    def forward(self, both_BTd: Tensor) -> Tensor:
        """`both` is [x; F], [B, T, 2 D]."""
        return torch.sigmoid(self.output(torch.tanh(self.hidden(both_BTd))))


class SingleLayerGate(nn.Module):
    """sigmoid([x; F] W + b): two [B, T, D] -> [B, T, 1] (SAS, Table 6); b starts at `bias`."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.output = Affine(2 * width, 1, bias)

    def forward(self, both_BTd: Tensor) -> Tensor:
        """`both` is [x; F], [B, T, 2 D]."""
        return torch.sigmoid(self.output(both_BTd))


SCALING_GATES: dict[GateKind, Callable[[int, float], nn.Module]] = {
    "two-layer": ScalingGate,
    "single-layer": SingleLayerGate,
}


class FixedShare(nn.Module):
    """A number in a gate's place: SAS then is one of the architectures of its Tables 1 and 2."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, both_BTd: Tensor) -> Tensor:
        """The number, as a scalar tensor."""
        return both_BTd.new_tensor(self.value)


def as_read(x_BTD: Tensor, reads: Reads) -> Tensor:
    """Input of a gate, of a map or of tokens: everything, or for `pooled` the mean over the pixels, [B, 1, 1, D]."""
    return x_BTD.mean(dim=tuple(range(1, x_BTD.ndim - 1)), keepdim=True) if reads == "pooled" else x_BTD


class SelfAdaptiveScaling(ResidualConnection):
    """y = a x + b F(x) + c N(x + F(x)), c = (1 - a)(1 - b), or from a third gate where `gamma` is `free`.

    `norm` makes N from the width, in place of the site's own. `fixed` puts numbers in the place of gates.
    """

    name = "sas"
    ends_in_norm = True  # its third term has; what the other two keep as it is, the gates choose

    def __init__(
        self,
        site: ResidualSite,
        alpha_bias: float = 0.0,
        beta_bias: float = 0.0,
        *,
        gate: GateKind = "two-layer",
        reads: Reads = "pixel",
        norm: Callable[[int], nn.Module] | None = None,
        gamma: Literal["product", "free"] = "product",
        gamma_bias: float = 0.0,
        fixed: Mapping[Share, float] = MappingProxyType({}),
    ) -> None:
        super().__init__(site)
        self.reads = reads
        self.norm = site.norm() if norm is None else norm(site.width)

        def share(name: Share, bias: float) -> nn.Module:
            return FixedShare(fixed[name]) if name in fixed else SCALING_GATES[gate](site.width, bias)

        self.alpha_gate = share("alpha", alpha_bias)
        self.beta_gate = share("beta", beta_bias)
        self.gamma_gate = share("gamma", gamma_bias) if gamma == "free" else None

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        F_BTD = branch(x_BTD)
        both_BTd = torch.cat([as_read(x_BTD, self.reads), as_read(F_BTD, self.reads)], dim=-1)
        a_BT1, b_BT1 = self.alpha_gate(both_BTd), self.beta_gate(both_BTd)
        c_BT1 = (1 - a_BT1) * (1 - b_BT1) if self.gamma_gate is None else self.gamma_gate(both_BTd)
        y_BTD: Tensor = a_BT1 * x_BTD + b_BT1 * F_BTD + c_BT1 * self.norm(x_BTD + F_BTD)
        return y_BTD


class GatedShare(ResidualConnection):
    """y = g F(N(x)) + (1 - g) x, g one of SAS's gates, or with `transform` Highway's, which reads x alone."""

    def __init__(
        self,
        site: ResidualSite,
        gate: Literal["transform"] | GateKind = "two-layer",
        bias: float = -3.0,
        reads: Reads = "pixel",
    ) -> None:
        super().__init__(site)
        self.norm = site.norm()
        self.reads = reads
        self.reads_x_alone = gate == "transform"
        width = site.width
        self.gate = Affine(width, width, bias) if gate == "transform" else SCALING_GATES[gate](width, bias)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        F_BTD = branch(self.norm(x_BTD))
        read = as_read(x_BTD, self.reads)
        if self.reads_x_alone:
            g = torch.sigmoid(self.gate(read))
        else:
            g = self.gate(torch.cat([read, as_read(F_BTD, self.reads)], dim=-1))
        return x_BTD + g * (F_BTD - x_BTD)
