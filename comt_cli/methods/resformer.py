r"""ResFormer: every block attends to a mixture of its own values and the first block's (Zhou et al. 2024).

$$V'_n = \mathrm{own}\,V_n + \mathrm{first}\,V_1$$

arXiv 2410.17897. Both weights are 1/2 in its code, the default here; the paper's best constants are 1 and 2. With
`learned`, both start there and are learned, one pair per block.
Deviations: The paper describes the learned variant, but its code does not have it. Here it has two numbers per block,
stored as their difference from the start; weight decay therefore pulls them towards the start.
"""

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection


class ResFormer(Method):
    """`own` and `first`: the two weights; `learned`: whether they are."""

    needs = ("values",)
    residual: ResidualName = "pre-norm"
    own: float = 0.5
    first: float = 0.5
    learned: bool = False

    def wiring(self) -> Wiring:
        from comt_cli.layers.shared_values import ValueResidual

        def make(layer: int, _: int) -> ValueResidual:
            return ValueResidual(layer, self.own, self.first, learned=self.learned)

        return Wiring(residual_connection(self.residual), shared_values=make)
