r"""EAU-like: an Evaluator-Adjuster Unit on what attention puts out (Dhayalkar 2024, after a second-hand account).

$$y = x + \tanh(W_3 x + b_3) \odot \sigma(W_2\,\mathrm{relu}(W_1 x + b_1) + b_2)$$

x is the output of attention, in an encoder-decoder
that of self-attention and of cross-attention; "W1 reduces the dimensionality".
Deviations: the primary text was not to be had, and whether this is its unit cannot be told. Unknown, and chosen here:
the bottleneck's width (`rank`, a quarter of the model's), whether the unit stands behind the output projection or
before it (`place`), and where norms stand (`residual`). The weights start as N(0, 0.02^2), the biases at 0.
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection

Share = Annotated[float, Field(gt=0, le=1)]
Place = Literal["after-o", "before-o"]


def eau_gates(rank: float, place: Place) -> dict[str, Any]:
    """The unit at its site: the whole branch of attention, or what attention mixed."""
    from comt_cli.layers.gates import EvaluatorAdjuster

    return {"attention" if place == "after-o" else "sdpa": partial(EvaluatorAdjuster.at, share=rank)}


class EAU(Method):
    """`rank`: the bottleneck's width as a share of the model's; `place`: behind or before the output projection."""

    needs = ("attention", "sdpa")
    rank: Share = 0.25
    place: Place = "after-o"
    residual: ResidualName = "pre-norm"

    def wiring(self) -> Wiring:
        return Wiring(residual_connection(self.residual), eau_gates(self.rank, self.place))
