"""Self-Adaptive Scaling (SAS, 2019, Eq. 2 and 4): y = a x + b F + (1 - a)(1 - b) LN(x + F).

a and b are one number a token each, from gates of their own: sigmoid(tanh([x; F] W_f + b_f) W_ff + b_ff), with W_f of
2D x D and W_ff of D x 1. As published, F reads the stream without a norm before it: at a = b = 0 this is Post-LN.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from comt_cli.layers.learned import Affine
from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection


class ScalingGate(nn.Module):
    """sigmoid(tanh([x; F] W_f + b_f) W_ff + b_ff): two [B, T, D] -> [B, T, 1]; b_ff starts at `bias`."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.hidden = Affine(2 * width, width)
        self.output = Affine(width, 1, bias)

    def forward(self, both_BTd: Tensor) -> Tensor:
        """`both` is [x; F], [B, T, 2 D]."""
        return torch.sigmoid(self.output(torch.tanh(self.hidden(both_BTd))))


class SelfAdaptiveScaling(ResidualConnection):
    """y = a x + b F(x) + (1 - a)(1 - b) N(x + F(x))."""

    def __init__(self, junction: Junction, alpha_bias: float = 0.0, beta_bias: float = 0.0) -> None:
        super().__init__(junction)
        self.norm = junction.norm()
        self.alpha_gate = ScalingGate(junction.width, alpha_bias)
        self.beta_gate = ScalingGate(junction.width, beta_bias)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        F_BTD = branch(x_BTD)
        both_BTd = torch.cat([x_BTD, F_BTD], dim=-1)
        a_BT1, b_BT1 = self.alpha_gate(both_BTd), self.beta_gate(both_BTd)
        y_BTD: Tensor = a_BT1 * x_BTD + b_BT1 * F_BTD + (1 - a_BT1) * (1 - b_BT1) * self.norm(x_BTD + F_BTD)
        return y_BTD
