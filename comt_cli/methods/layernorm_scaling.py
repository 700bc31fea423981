"""LayerNorm Scaling, against the growth of Pre-LN's variance with depth.

y = x + F(N(x) / sqrt(l)), Sun et al. 2025, Eq. 10.
Deviations: see the residual connection's own file.
"""

from __future__ import annotations

from typing import ClassVar

from comt_cli.methods.base import Method, Wiring


class LayerNormScalingMethod(Method):
    """No options: the connection has none."""

    name: ClassVar[str] = "layernorm-scaling"

    def wiring(self) -> Wiring:
        from comt_cli.layers.residual import LayerNormScaling

        return Wiring(LayerNormScaling)
