"""SVFormer: every block attends to the values of the first block and has none of its own (Zhou et al. 2024).

$$V_n = V_1$$

arXiv 2410.17897. Blocks after the first have no v_proj: 11 of 12 blocks save D^2 parameters each.
Deviations: A cache stores the values in every layer, where one copy would suffice.
"""

from typing import Self

from pydantic import model_validator

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection, residual_connections


class SVFormer(Method):
    """`residual`: the residual connection; none with an own input of values."""

    needs = ("values",)
    residual: ResidualName = "pre-norm"

    @model_validator(mode="after")
    def _reads_no_values(self) -> Self:
        if "values" in residual_connections()[self.residual].needs:
            raise ValueError(
                f"residual: {self.residual} makes inputs of values, which blocks of svformer do not compute"
            )
        return self

    def wiring(self) -> Wiring:
        from comt_cli.layers.shared_values import SingleValue

        return Wiring(residual_connection(self.residual), shared_values=lambda layer, _: SingleValue(layer))
