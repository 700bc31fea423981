r"""Transponder: contextual modulators on each projection (2025, Eq. 4 to 10), by default a channel gate times a scalar.

$$z = \gamma_c \odot \gamma_s W x, \qquad \gamma_k = 2\sigma(\alpha_k B_k\,\sigma(A x))$$

`granularity` scalar, channel and channel-scalar (the method itself) are "layer-scalar", "layer-channel" and
"layer-channel-scalar" in Table 1. The "path" variants are `transponder-path`; "w/o context" is `transponder-static`.
Deviations: One A serves both gates, since only this adds the printed 1 % of parameters (1.05 % at 130M; two add 1.52 %:
`separate_summaries`). No biases; the paper starts them at zero. alpha is kept positive as exp(log_alpha) and starts at
1; the paper does not state how. log_alpha starts at 0 and therefore also changes in bf16-pure. The paper's alpha = 1
would stay constant there, since a step of 1e-3 is smaller than bf16's spacing at 1.
"""

from functools import partial
from typing import Literal, Self

from pydantic import model_validator

from comt_cli.methods.base import Method, ProjectionSites, ResidualName, Wiring, residual_connection
from comt_cli.recipe.settings import GateInit, Width
from comt_cli.tasks.base import PROJECTIONS


class Transponder(Method):
    """`rank`: the bottleneck's width r; `sites`: the projections that carry a modulator. `learnable_sigmoid`: whether
    alpha is learned, or stays 1; `separate_summaries`: whether the channel and the scalar gate have an A each."""

    granularity: Literal["scalar", "channel", "channel-scalar"] = "channel-scalar"
    rank: Width = 8
    sites: ProjectionSites = PROJECTIONS
    residual: ResidualName = "pre-norm"
    init: GateInit = "kaiming-uniform"
    learnable_sigmoid: bool = True
    separate_summaries: bool = False

    @model_validator(mode="after")
    def _something_to_separate(self) -> Self:
        if self.separate_summaries and self.granularity != "channel-scalar":
            raise ValueError("separate_summaries: needs two gates, granularity: channel-scalar")
        return self

    def wiring(self) -> Wiring:
        from comt_cli.layers.gates import TransponderGate

        gate = partial(TransponderGate.at, **self.model_dump(exclude={"sites", "residual"}))
        return Wiring(residual_connection(self.residual), dict.fromkeys(self.sites, gate))
