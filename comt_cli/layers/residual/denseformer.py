"""DenseFormer (Pagliardini et al. 2024): behind block i the stream becomes Y_i = sum_j a_ij X_j, j = 0 ... i.

X_0 is the embedding and X_i = B_i(Y_{i-1}) what block i makes of the mixture before it. At the start a_ii = 1 and the
others are 0, which is Pre-LN. With dilation k only every k-th X behind the newest is mixed, and with period p only
behind every p-th block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.layers.learned import NO_DECAY, Constant, factors, wide
from comt_cli.layers.residual.base import Branch, ResidualConnection, ResidualSite, State


class DenseFormer(ResidualConnection):
    """y = x + F(N(x)); behind the block's last add the weighted sum. `DWA` holds a_ij, less what it starts at."""

    name = "denseformer"
    needs = ("states",)

    def __init__(self, site: ResidualSite, dilation: int = 1, period: int = 1) -> None:
        super().__init__(site)
        if site.layers // period * period < dilation:
            raise UserError(
                f"period {period}, dilation {dilation}: no mixture would have an earlier output in it, of "
                f"{site.layers} blocks",
                "The last multiple of period that is a block's number, from 1, must be at least dilation.",
            )
        self.norm = site.norm()
        block = site.layer + 1  # the paper's i
        self.mixed = [j for j in range(block + 1) if j % dilation == block % dilation]
        self.ends_block = site.part == "mlp"
        mixes = self.ends_block and block % period == 0
        self.DWA = Constant(0.0, len(self.mixed), update_rule=NO_DECAY) if mixes else None

    def mixing(self, state: State) -> dict[str, Tensor]:
        """a, of the stream behind this block; 0 for what is left out."""
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
            sum_BTD = wide(y_BTD)
            for weight_1, source in zip(factors(self.DWA()), self.mixed, strict=True):
                sum_BTD = sum_BTD + weight_1 * sources[source]
            y_BTD = sum_BTD.to(y_BTD.dtype)
        return State(y_BTD, sources)
