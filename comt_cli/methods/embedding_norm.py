"""Embedding norm: Pre-LN whose stream begins at the embedding's norm (as in nanochat, Karpathy 2026: code).

x0 = N(e), then the Pre-LN blocks. It is what start lambdas do to Pre-LN before they learn anything, and the control
beside them: an embedding starts small, and so normalised it begins many times as large beside what branches add.
Deviations: N is RMSNorm without a gain; others that normalise an embedding (Le Scao et al. 2022) have LayerNorm with
gain and bias.
"""

from __future__ import annotations

from typing import ClassVar

from comt_cli.methods.base import Method, Wiring, residual_connection


class EmbeddingNormMethod(Method):
    """No options: there is nothing to choose."""

    name: ClassVar[str] = "embedding-norm"

    def wiring(self) -> Wiring:
        from comt_cli.layers.norms import EmbeddingNorm

        return Wiring(residual_connection("pre-norm"), entry=EmbeddingNorm)
