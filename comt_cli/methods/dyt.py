r"""Dynamic Tanh: g * tanh(a x) in the place of every norm (Zhu et al. 2025, Eq. 1).

$$N(x) \to g \odot \tanh(a x)$$

Each norm becomes one learned number a and a gain g. As in the authors' LLaMA there is no shift, and a learned number,
sqrt(D) at the start, multiplies the embedded tokens. With `function: erf` it is Derf, g * erf(a x + s) + b, with a
number s and a shift b per channel that start at 0 (Chen et al. 2025, arXiv 2512.10938, Eq. 10). Its GPT-2 has the
factor on the embedding too.
Deviations: The authors publish no a for these sizes. All norms use 0.5, the default of their module (their 7B model has
0.8 before attention and 0.2 elsewhere). In bf16-pure, the papers' precision, the factor on the embedding does not
learn: neighbouring bf16 numbers around sqrt(768) = 27.7 are 0.125 apart, and a step of Adam is about the learning rate.
Derf's a starts at 0.5 in the paper; it states no other for its GPT-2, whose code takes three from the command line.
"""

from typing import Literal, Self

from pydantic import PositiveFloat, model_validator

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection


class DynamicTanhMethod(Method):
    """`alpha_attention`: where a starts for the norms of the attention branches; `alpha_other`: for all others;
    `function`: tanh, or erf with shifts."""

    later = frozenset({"function"})
    alpha_attention: PositiveFloat = 0.5
    alpha_other: PositiveFloat = 0.5
    function: Literal["tanh", "erf"] = "tanh"
    residual: ResidualName = "pre-norm"

    @model_validator(mode="after")
    def _has_norms(self) -> Self:
        if self.residual == "rezero":
            raise ValueError("residual: rezero has no norms for dyt to replace")
        return self

    def wiring(self) -> Wiring:
        from comt_cli.layers.norms import DynamicErf, DynamicTanh, EmbeddingScale, NormPlace

        kind = DynamicErf if self.function == "erf" else DynamicTanh

        def norm(place: NormPlace) -> DynamicTanh:
            is_attention = place.of in ("attention", "cross")
            return kind(place.width, self.alpha_attention if is_attention else self.alpha_other)

        return Wiring(residual_connection(self.residual), norms={"*": norm}, entry=EmbeddingScale)
