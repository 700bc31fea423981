"""Pre-LN whose projections that write to the stream start 1 / sqrt(2 L) times as large (Radford et al. 2019, GPT-2), so
that the 2L additions of L blocks give the stream a variance that does not grow with depth. The decoder of an
encoder-decoder has 3L additions."""

from __future__ import annotations

import math

from comt_cli.layers.gates import Site
from comt_cli.layers.residual.pre_norm import PreNorm

_WRITES_TO_STREAM = ("o_proj", "down_proj")


class ScaledInit(PreNorm):
    """y = x + F(N(x))."""

    def initial_std(self, site: Site, own: float) -> float:
        return own / math.sqrt(self.junction.count) if site.name in _WRITES_TO_STREAM else own
