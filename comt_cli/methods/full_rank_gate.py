r"""Full-rank gates on projections (Transponder 2025, Table 2, after Qiu et al. 2025).

$$z = (W x) \odot \sigma(W_g x)$$

W_g is as large as W. Transponder compares with an "SDPA-Gate" and an "ALL-Gate". It prints parameter increases of 15,
22 and 23 %, and of 44, 65 and 80 %. These are full gates on the query, key, value and output projections (14.4, 21.1
and 22.9 %), and on all seven projections (43.6, 63.3 and 80.1 %). No other reading fits.
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
