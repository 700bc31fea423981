r"""EAU-like: an Evaluator-Adjuster Unit on the attention output (Dhayalkar 2024, after a second-hand account).

$$y = x + \tanh(W_3 x + b_3) \odot \sigma(W_2\,\mathrm{relu}(W_1 x + b_1) + b_2)$$

x is the output of attention; in an encoder-decoder, of self-attention and of cross-attention. "W1 reduces the
dimensionality".
Deviations: The primary text was not available, so it is not known whether this is its unit. Three points are open and
chosen here: the bottleneck width (`rank`, a quarter of the model's), the position of the unit after or before the
output projection (`place`), and the position of the norms (`residual`). Weights start as N(0, 0.02^2), biases at 0.
"""

from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection

Share = Annotated[float, Field(gt=0, le=1)]
Place = Literal["after-o", "before-o"]


def eau_gates(rank: float, place: Place) -> dict[str, Any]:
    """The unit at its site: the whole attention branch, or the attention output before `o_proj`."""
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
