r"""Transponder's path variants: a modulator on each whole branch (2025, Eq. 7; Table 1, "path-scalar", "path-channel").

$$y = x + \gamma \odot F(h), \qquad \gamma = 2\sigma(\alpha B\,\sigma(A h)), \quad h = N(x)$$

Deviations: The modulator reads the input of the branch, which is the normalised stream under Pre-LN. The equation has
the stream before the norm and counts the norm as part of F. Other deviations as `transponder`. The paper finds both
variants unstable.
"""

from functools import partial
from typing import Literal

from comt_cli.methods.base import Method, ResidualName, Wiring, residual_connection
from comt_cli.recipe.settings import GateInit, Width


class TransponderPath(Method):
    """`granularity`: one number a token, or one a channel; `rank`: the bottleneck's width r. `learnable_sigmoid`:
    whether alpha is learned, or stays 1."""

    needs = ("attention", "mlp")
    granularity: Literal["scalar", "channel"] = "scalar"
    rank: Width = 8
    residual: ResidualName = "pre-norm"
    init: GateInit = "kaiming-uniform"
    learnable_sigmoid: bool = True

    def wiring(self) -> Wiring:
        from comt_cli.layers.gates import TransponderGate

        gate = partial(TransponderGate.at, **self.model_dump(exclude={"residual"}))
        return Wiring(residual_connection(self.residual), {"attention": gate, "mlp": gate})
