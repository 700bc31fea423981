"""Pre-LN: y = x + F(N(x)), with a norm after the last block (Xiong et al. 2020; LLaMA)."""

from __future__ import annotations

from torch import Tensor

from comt_cli.layers.residual.base import Branch, Junction, Pending, ResidualConnection, State, normalised


class PreNorm(ResidualConnection):
    """y = x + F(N(x))."""

    fused = False
    """Whether the addition, and the gate on what is added, are left to one kernel with the norm that comes next."""

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm = junction.norm()

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return x_BTD + branch(self.norm(x_BTD))

    def step(self, state: State, branch: Branch) -> State:
        if not self.fused:
            return super().step(state, branch)
        x_BTD, h_BTD = normalised(state, self.norm)
        last = branch.before_gate(h_BTD)
        return x_BTD + branch(h_BTD) if last is None else Pending(x_BTD, *last)
