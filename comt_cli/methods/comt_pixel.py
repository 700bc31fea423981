r"""CoMT on batch norms: a scalar gate in (0, 1) on every normalised pixel (Zhang et al. 2025, Eq. 10-12, Figure A5c).

$$y = \sigma(b\,\sigma(A n))\,\gamma \odot n + \beta$$

n are the features normalised over the batch.
Deviations: no biases and no gates outside residual blocks, because only so do the printed parameter increases come out.
For the same reason gamma stays. Eq. 12 has none, but Table A7 counts it: either the authors' gamma is multiplied in, or
theirs lies idle. Here it does what it does in a batch norm, behind the gate's reading, and starts at 1, where this is
Eq. 12; `gamma: dropped` is Eq. 12 for good, with C parameters fewer a norm. The modulators' initialisation is not
stated: torch's own is the default.
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
