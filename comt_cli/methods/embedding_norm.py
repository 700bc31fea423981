"""Embedding norm: Pre-LN whose stream begins at the embedding's norm (as in nanochat, Karpathy 2026: code).

x0 = N(e), N being RMSNorm without a gain, then the Pre-LN blocks: start lambdas that begin at 1 and 0 and learn
nothing, and the control beside them. An embedding starts as small as what a branch adds to it; normalised it is many
times as large.
Deviations: of its source the norm alone is here. For language models only: an encoder-decoder scales its embedding to
about this size, and BERT normalises it.
"""

from __future__ import annotations

from typing import ClassVar

from comt_cli.methods.base import Method, Wiring, residual_connection


class EmbeddingNormMethod(Method):
    """No options: there is nothing to choose."""

    name: ClassVar[str] = "embedding-norm"
    needs: ClassVar = ("bare embedding",)

    def wiring(self) -> Wiring:
        from comt_cli.layers.norms import EmbeddingNorm

        return Wiring(residual_connection("pre-norm"), entry=EmbeddingNorm)
