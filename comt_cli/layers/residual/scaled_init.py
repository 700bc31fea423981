"""Pre-LN whose projections that write to the stream start 1 / sqrt(2 L) times as large (Radford et al. 2019, GPT-2), so
that the 2L additions of L blocks give the stream a variance that does not grow with depth. The decoder of an
encoder-decoder has 3L additions. `additions` in their place gives another factor, at any depth."""

from __future__ import annotations

import math

from comt_cli.layers.gates import Site
from comt_cli.layers.residual.base import Junction
from comt_cli.layers.residual.pre_norm import PreNorm

_WRITES_TO_STREAM = ("o_proj", "down_proj")


class ScaledInit(PreNorm):
    """y = x + F(N(x))."""

    def __init__(self, junction: Junction, additions: int | None = None) -> None:
        super().__init__(junction)
        self.additions = junction.count if additions is None else additions

    def initial_std(self, site: Site, own: float) -> float:
        return own / math.sqrt(self.additions) if site.name in _WRITES_TO_STREAM else own
