r"""ResFormer: every block attends with a mixture of its values and the first block's (Zhou et al. 2024).

$$V'_n = \mathrm{own}\,V_n + \mathrm{first}\,V_1$$

arXiv 2410.17897; in its code both are 1/2, the default; the paper's best constants are 1 and 2. `learned`: the two
start there and are learned, a pair a block.
Deviations: the learned variant is described in the paper and not in its code, and ours has two numbers a block, stored
as what they differ from their start by: weight decay, if there is any, draws them there.
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
