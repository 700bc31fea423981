r"""Scaling gate: one gate between skip path and branch, y = g F + (1 - g) x (SAS, 2019, Table 6).

$$y = g F + (1 - g)\,x$$

`transform` is Highway's gate (Srivastava et al. 2015), one number per channel, from x alone. `single-layer` and
`two-layer` are SAS's gates, one number from [x; F].
Deviations: The table states neither how a gate is applied nor its bias. Here it is applied like Highway's, with the
bias of -3 that section 4.2 gives to the branch. How gates read a map is not stated either. By default they read x and F
averaged over the pixels, which gives one number, or one per channel, for the whole image; `reads: pixel` gives one for
each pixel.
"""

from functools import partial
from typing import Literal

from comt_cli.methods.base import Method, Wiring


class ScalingGateMethod(Method):
    """`gate`: which; `bias`: where its last bias starts; `reads`: what it looks at."""

    streams = ("maps",)
    gate: Literal["transform", "single-layer", "two-layer"] = "two-layer"
    bias: float = -3.0
    reads: Literal["pooled", "pixel"] = "pooled"

    def wiring(self) -> Wiring:
        from comt_cli.layers.residual.scaled import GatedShare

        return Wiring(partial(GatedShare, gate=self.gate, bias=self.bias, reads=self.reads))
