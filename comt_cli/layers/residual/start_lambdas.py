"""Learned weights on the stream and on where it began: before every block x <- r x + m x0 (nanochat's `resid_lambdas`
and `x0_lambdas`, Karpathy 2026).

x0 is the embedding, or its RMSNorm without a gain, as published: then the stream begins there, too.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from comt_cli.layers.learned import Constant, UpdateRule, factors, wide
from comt_cli.layers.residual.base import Branch, ResidualConnection, ResidualSite, State


class StartLambdas(ResidualConnection):
    """At the first add of a block x <- r x + m x0; at all y = x + F(N(x)).

    `start`: `identity` has r = 1 and m = 0; `graded` has r from 1.15 down to 1.05 and m from 0.2 down to 0.05 over
    the blocks. `rate` is that of m, times the learning rate.
    """

    name = "start-lambdas"
    needs = ("states",)

    def __init__(
        self,
        site: ResidualSite,
        start: Literal["identity", "graded"] = "identity",
        *,
        normalised: bool = True,
        rate: float = 100.0,
    ) -> None:
        super().__init__(site)
        self.norm = site.norm()
        self.begins_stack, self.normalised = site.index == 0, normalised
        self.r = self.m = None
        if not site.before:
            down = site.layer / max(1, site.layers - 1)
            self.first_r, first_m = (1.15 - 0.1 * down, 0.2 - 0.15 * down) if start == "graded" else (1.0, 0.0)
            self.r = Constant(0.0)  # what is added to `first_r`
            self.m = Constant(first_m, update_rule=UpdateRule(rate, decays=False))

    def mixing(self, state: State) -> dict[str, Tensor]:
        """m and r, of the stream before this block."""
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
