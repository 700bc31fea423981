r"""GatedNorm: every norm is followed by a low-rank gate of its own output (Qiu et al. 2026, arXiv 2601.22966).

$$N(x) \to n \odot \sigma(B\,\mathrm{silu}(A n)), \qquad n = N(x)$$

A is r x D and B is D x r. Marin has the same with r = 128 (experiments/grug), also after the embedding.
Deviations: r = 16 is the paper's as two public reimplementations quote it; its text was not at hand. The start is
Marin's: A and B are N(0, 0.02^2), so gates start near 1/2.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection
from comt_cli.recipe.settings import MAX_WIDTH


class GatedNormMethod(Method):
    """`rank`: r."""

    rank: Annotated[int, Field(gt=0, le=MAX_WIDTH)] = 16
    residual: ResidualName = "pre-norm"

    @model_validator(mode="after")
    def _has_norms(self) -> Self:
        if self.residual == "rezero":
            raise ValueError("residual: rezero has no norms for gated-norm to follow")
        return self

    def wiring(self) -> Wiring:
        from comt_cli.layers.norms import GatedNorm, NormPlace

        def norm(place: NormPlace) -> GatedNorm:
            assert place.usual is not None
            return GatedNorm(place.usual(place), place.width, self.rank)

        return Wiring(residual_connection(self.residual), norms={"*": norm})
