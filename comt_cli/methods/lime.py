r"""LIMe: keys and values are learned mixtures of those of all blocks so far (Gerasimov et al. 2025, arXiv 2502.09245).

$$[K; V]'_h = \sum_j R_{hj}\,[K; V]_j$$

The sum is over the heads j of all blocks so far, before the rotary positions, as in the code. R starts as the block's
own heads, with U(+-sqrt(3 / fan_in)) for earlier ones, so the start is not Pre-LN.
Deviations: Routers have `rate` times the learning rate, ten as in the code. They have the run's weight decay, which is
optional in the code. Weights of the block's own heads are stored as their difference from 1. A cache stores the mixed
keys and values, as in the code.
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
