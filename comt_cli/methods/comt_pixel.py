r"""CoMT on batch norms: a scalar gate in (0, 1) on every normalised pixel (Zhang et al. 2025, Eq. 10-12, Figure A5c).

$$y = \sigma(b\,\sigma(A n))\,\gamma \odot n + \beta$$

n are the features normalised over the batch.
Deviations: No biases and no gates outside residual blocks; only then do the printed parameter increases result. For the
same reason gamma is kept: Eq. 12 has none, but Table A7 counts it. Either the authors multiply gamma in, or theirs is
inactive. Here gamma multiplies after the gate has read n, as in a batch norm, and starts at 1, where this is Eq. 12.
`gamma: dropped` is Eq. 12 itself, with C fewer parameters per norm. The paper does not state the initialisation of the
modulators; the default is torch's own.
"""

from functools import partial
from typing import Literal

from comt_cli.methods.base import Method, NormSites, Wiring
from comt_cli.recipe.settings import GateInit, Width
from comt_cli.tasks.base import NORMS


class CoMTPixel(Method):
    """`hidden`: the modulator's width h; `sites`: the norms that carry one; `gamma`: whether the batch norm's stays."""

    streams = ("maps",)
    hidden: Width = 2
    sites: NormSites = NORMS
    gamma: Literal["kept", "dropped"] = "kept"
    init: GateInit = "torch-linear"

    def wiring(self) -> Wiring:
        from comt_cli.layers.convolution import PixelGate, batch_norm
        from comt_cli.layers.residual.norm_placement import PreNorm

        gate = partial(PixelGate.at, hidden=self.hidden, init=self.init)
        norm = partial(batch_norm, weighted=self.gamma == "kept")
        return Wiring(PreNorm, dict.fromkeys(self.sites, gate), dict.fromkeys(self.sites, norm))
