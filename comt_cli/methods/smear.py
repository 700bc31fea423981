r"""Smear: each token's embedding gets a gated share of the previous token's (nanochat, Karpathy 2026: code).

$$x_0 = e_t + \lambda\,\sigma(w\,N(e_t)_{1:c})\,e_{t-1}$$

N is RMSNorm without a gain. Defaults are those of nanochat (commit a825e63, gate's start: 9822cc7): lambda = 0 at the
start, so the network starts as the one without it; c = 24, with w from U(0, 0.02). modded-nanogpt, the origin (its
record 34, #130), has c = 12 and w = 0. Decoding step by step keeps the previous token.
Deviations: nanochat's stream is itself normalised first; use `embedding-norm` with `of: smear` for that. lambda and w
have the run's learning rate, and w its weight decay; nanochat has the token embedding's rate for both, without decay.
Texts in one sequence are not separated, as in both sources. A network with smear cannot be exported.
"""

from functools import partial

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection
from comt_cli.recipe.settings import Count


class SmearMethod(Method):
    """`channels`: c."""

    needs = ("bare embedding",)
    residual: ResidualName = "pre-norm"
    channels: Count = 24

    def wiring(self) -> Wiring:
        from comt_cli.layers.smear import Smear

        return Wiring(residual_connection(self.residual), entry=partial(Smear, channels=self.channels))
