"""SVFormer: every block attends to the values of the first block and has none of its own (Zhou et al. 2024).

$$V_n = V_1$$

arXiv 2410.17897. Blocks after the first have no v_proj: 11 of 12 blocks save D^2 parameters each.
Deviations: A cache stores the values in every layer, where one copy would suffice.
"""

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection


class SVFormer(Method):
    """`residual`: the residual connection."""

    needs = ("values",)
    residual: ResidualName = "pre-norm"

    def wiring(self) -> Wiring:
        from comt_cli.layers.shared_values import SingleValue

        return Wiring(residual_connection(self.residual), shared_values=lambda layer, _: SingleValue(layer))
