"""DeepNorm as the public scripts of Mix-LN and LayerNorm Scaling have it, with their two errors.

alpha is the literal 2.8284271247461903 = (2 * 32)^(1/4) whatever the depth, and the gain of the initialisation is
(8L)^(+1/4) where the paper has (8L)^(-1/4): value and output projections start about ten times too large at 130m. The
final norm stays. The published DeepNorm baselines of CoMT and Transponder probably come from this; `deepnorm` is the
method itself.
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
