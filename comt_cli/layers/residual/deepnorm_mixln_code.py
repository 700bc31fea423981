"""DeepNorm as the public scripts of Mix-LN and LayerNorm Scaling have it, with their two errors: alpha is that of 32
layers at any depth, and the exponent of beta has the wrong sign. The final norm stays.
"""

from __future__ import annotations

from comt_cli.layers.residual.base import Junction
from comt_cli.layers.residual.deepnorm import DeepNorm


class DeepNormOfMixLNCode(DeepNorm):
    """y = N(2.8284271247461903 x + F(x))."""

    keeps_final_norm = True

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.alpha = 2.8284271247461903
        self.beta = (4 * junction.count) ** 0.25
