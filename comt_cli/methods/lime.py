r"""LIMe: keys and values that are learned mixtures of those of all blocks up to one's own (Gerasimov et al. 2025).

$$[K; V]'_h = \sum_j R_{hj}\,[K; V]_j$$

The sum is over the heads j of all blocks so far, before the rotary positions (arXiv 2502.09245 and its code). R starts
as the block's own heads, with U(+-sqrt(3 / fan_in)) for earlier ones: not Pre-LN.
Deviations: routers have `rate` times the others' learning rate, ten as in the code, and the run's weight decay, which
is optional there. Own shares are stored as what they differ from 1 by. A cache keeps the mixed keys and values, as
there.
"""

from pydantic import PositiveFloat

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection


class LIMe(Method):
    """`residual`: the residual connection; `rate`: of the routers, times the run's."""

    needs = ("values",)
    residual: ResidualName = "pre-norm"
    rate: PositiveFloat = 10.0

    def wiring(self) -> Wiring:
        from comt_cli.layers.shared_values import LayerRouter

        def make(layer: int, heads: int) -> LayerRouter:
            return LayerRouter(layer, heads, self.rate)

        return Wiring(residual_connection(self.residual), shared_values=make)
