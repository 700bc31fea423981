r"""CoMT on convolutions: a scalar gate in (0, 1) on every output pixel (Zhang et al. 2025, Eq. 13, Figure A5b).

$$y = \sigma(w\,\sigma(V * x))\,(W * x)$$

V has the window, stride and padding of W, and max(1, C_in / ratio) filters. The gate precedes the batch norm.
Deviations: No biases and no gates outside residual blocks; only then do the printed parameter increases result (the
pseudo code's `nn.Conv2d` would have biases). The paper does not state the initialisation of the modulators; the default
is torch's own. V * x and W * x are computed in one convolution.
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
