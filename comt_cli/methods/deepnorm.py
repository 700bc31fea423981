"""DeepNorm, for very deep Post-LN Transformers.

y = N(alpha x + F(x)), Wang et al. 2022, Figure 2.
Deviations: see the residual connection's own file.
"""

from __future__ import annotations

from typing import ClassVar

from comt_cli.methods.base import Method, Wiring


class DeepNormMethod(Method):
    """No options: the connection has none."""

    name: ClassVar[str] = "deepnorm"

    def wiring(self) -> Wiring:
        from comt_cli.layers.residual import DeepNorm

        return Wiring(DeepNorm)
