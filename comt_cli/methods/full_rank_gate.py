r"""Full-rank gates on projections: z = (x W^T) * sigmoid(x W_g^T), W_g as large as W.

$$z = (W x) \odot \sigma(W_g x)$$

Transponder (2025), Table 2, compares with an "SDPA-Gate" after Qiu et al. 2025 and an "ALL-Gate". The parameters it
prints for them, 15, 22 and 23 % and 44, 65 and 80 %, are those of full gates on the query, key, value and output
projections, and on all seven: 14.4, 21.1, 22.9 % and 43.6, 63.3, 80.1 %. No other reading fits.
Deviations: the reading itself. W_g starts as N(0, 0.02^2), without bias, as in Qiu et al.
"""

from comt_cli.methods.base import SITE_SETS, Method, ProjectionSites, ResidualName, Wiring, residual_connection


class FullRankGateMethod(Method):
    """`sites`: the projections that carry a gate."""

    sites: ProjectionSites = SITE_SETS["self-attention"]
    residual: ResidualName = "pre-norm"

    def wiring(self) -> Wiring:
        from comt_cli.layers.gates import FullRankGate

        return Wiring(residual_connection(self.residual), dict.fromkeys(self.sites, FullRankGate.at))
