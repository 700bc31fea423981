r"""CoMT on convolutions: a scalar gate in (0, 1) on every output pixel (Zhang et al. 2025, Eq. 13, Figure A5b).

$$y = \sigma(w\,\sigma(V * x))\,(W * x)$$

V has the window, stride and padding of the W it modulates, and max(1, C_in / ratio) filters. The gate comes before
the batch norm.
Deviations: no biases and no gates outside residual blocks, because only so do the printed parameter increases come out
(the pseudo code's `nn.Conv2d` would have biases). The modulators' initialisation is not stated: torch's own is the
default. V * x is computed in one convolution with W * x.
"""

from functools import partial

from comt_cli.methods.base import ConvolutionSites, Method, Wiring
from comt_cli.recipe.settings import GateInit, Width
from comt_cli.tasks.base import CONVOLUTIONS


class CoMTSlidingWindow(Method):
    """`ratio`: how many input channels there are to a filter of the gate; `sites`: the convolutions that carry one."""

    streams = ("maps",)
    ratio: Width = 64
    sites: ConvolutionSites = CONVOLUTIONS
    init: GateInit = "torch-linear"

    def wiring(self) -> Wiring:
        from comt_cli.layers.convolution import WindowGate
        from comt_cli.layers.residual.norm_placement import PreNorm

        gate = partial(WindowGate.at, ratio=self.ratio, init=self.init)
        return Wiring(PreNorm, dict.fromkeys(self.sites, gate))
