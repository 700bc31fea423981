"""Embedding norm: the stream starts as the norm of the embedding (as in nanochat, Karpathy 2026: code).

$$x_0 = N(e)$$

N is RMSNorm without a gain. By default Pre-LN blocks follow (start lambdas that start at 1 and 0 and do not learn).
`of` names another method whose blocks follow instead. An embedding starts as small as the output of one branch; after
the norm it is many times as large.
Deviations: Only the norm is taken from the source. It is for language models: an encoder-decoder scales its embedding
to about this size, and BERT normalises it. A test compares outputs and gradients with `nanochat` of transformers. None
of its norms has a gain, and the epsilon is 1e-6, here PyTorch's smallest.
"""

from dataclasses import replace
from typing import Any

from pydantic import field_validator

from comt_cli.methods import method_from
from comt_cli.methods.base import NamesAnother, Wiring, residual_connection
from comt_cli.methods.wider import absent_of_named, spelt_out
from comt_cli.tasks.base import Sites


class EmbeddingNormMethod(NamesAnother):
    """`of`: the method whose stream begins there, a name or a name with options; Pre-LN where none is named."""

    needs = ("bare embedding",)
    later = frozenset({"of"})
    of: str | dict[str, Any] | None = None

    @field_validator("of")
    @classmethod
    def _known(cls, given: str | dict[str, Any] | None) -> dict[str, Any] | None:
        named = None if given is None else spelt_out(given)
        return None if named == {"name": "pre-ln"} else named  # one run id for both

    def absent(self, sites: Sites) -> dict[str, str]:
        return super().absent(sites) | absent_of_named(sites, of=self.of)

    def wiring(self) -> Wiring:
        from torch import nn

        from comt_cli.layers.norms import EmbeddingNorm

        wiring = method_from(self.of).wiring() if isinstance(self.of, dict) else Wiring(residual_connection("pre-norm"))
        inner = wiring.entry
        if inner is None:
            return replace(wiring, entry=EmbeddingNorm)
        return replace(wiring, entry=lambda width: nn.Sequential(EmbeddingNorm(width), inner(width)))
