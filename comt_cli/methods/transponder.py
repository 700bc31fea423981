"""Transponder: a channel gate times a scalar gate on every projection (2025, Eq. 4 to 10, "layer-channel-scalar").

Deviations: one A serves both gates, because only that adds the printed 1 % of parameters (1.05 % at 130M; two would
add 1.52 %). No biases (the paper starts them at zero). alpha is kept positive as exp(log_alpha), starting at 1; the
paper does not say how. log_alpha, which starts at 0, moves in bf16-pure too, where the paper's alpha = 1 would stand
still: a step of 1e-3 is less than bf16's spacing there.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from pydantic import PositiveInt

from comt_cli.methods.base import PROJECTIONS, Method, ResidualName, Sites, Wiring
from comt_cli.recipe.settings import GateInit


class Transponder(Method):
    """`rank`: the bottleneck's width r; `sites`: the projections that carry a modulator."""

    name: ClassVar[str] = "transponder"
    rank: PositiveInt = 8
    sites: Sites = PROJECTIONS  # type: ignore[assignment]
    residual: ResidualName = "pre-norm"
    init: GateInit = "kaiming-uniform"

    def wiring(self) -> Wiring:
        from comt_cli.layers.gates import TransponderGate
        from comt_cli.layers.residual import RESIDUAL_CONNECTIONS

        gate = partial(TransponderGate, rank=self.rank, init=self.init)
        return Wiring(RESIDUAL_CONNECTIONS[self.residual], dict.fromkeys(self.sites, gate))
