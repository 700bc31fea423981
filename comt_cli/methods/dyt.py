r"""Dynamic Tanh: g * tanh(a x) in the place of every norm (Zhu et al. 2025, Eq. 1).

$$N(x) \to g \odot \tanh(a x)$$

Each norm becomes one learned number a and a gain g. As in the authors' LLaMA there is no shift, and a learned number,
sqrt(D) at the start, multiplies the embedded tokens.
Deviations: The authors publish no a for these sizes. All norms use 0.5, the default of their module (their 7B model has
0.8 before attention and 0.2 elsewhere). In bf16-pure, the papers' precision, the factor on the embedding does not
learn: neighbouring bf16 numbers around sqrt(768) = 27.7 are 0.125 apart, and a step of Adam is about the learning rate.
"""

from typing import Self

from pydantic import PositiveFloat, model_validator

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection


class DynamicTanhMethod(Method):
    """`alpha_attention`: where a starts for the norms of the attention branches; `alpha_other`: for all others."""

    alpha_attention: PositiveFloat = 0.5
    alpha_other: PositiveFloat = 0.5
    residual: ResidualName = "pre-norm"

    @model_validator(mode="after")
    def _has_norms(self) -> Self:
        if self.residual == "rezero":
            raise ValueError("residual: rezero has no norms for dyt to replace")
        return self

    def wiring(self) -> Wiring:
        from comt_cli.layers.norms import DynamicTanh, EmbeddingScale, NormPlace

        def norm(place: NormPlace) -> DynamicTanh:
            is_attention = place.of in ("attention", "cross")
            return DynamicTanh(place.width, self.alpha_attention if is_attention else self.alpha_other)

        return Wiring(residual_connection(self.residual), norms={"*": norm}, entry=EmbeddingScale)
