r"""Self-Adaptive Scaling of ResNets: learned shares of skip path, branch, and their normed sum (SAS, 2019, Eq. 2, 4).

$$y = a x + b F + (1 - a)(1 - b)\,\mathrm{LN}(x + F)$$

a and b come from two-layer tanh gates that read [x; F], their last biases +3 (a) and -3 (b) at the start; `gamma: free`
is footnote 1, `norm: batch` Table 7, `gate: single-layer` the other gate.
Deviations: the paper has vectors where a ResNet has maps, and says neither how gates read these nor over what LN
normalises. By default the gates read x and F averaged over the pixels, and a, b are one number an image, as a vector
has one; LN is over the whole map of an image, with a gain and a shift a channel. `reads: pixel` and `norm_over: pixel`
are the other readings: every pixel a vector of its own. The gates' weights start as N(0, 0.02^2), as all linear layers
here, where the paper says no more than "as in He et al. 2016b", whose networks have no such layers; for a free gamma no
bias is stated: 0. No public code is known.
"""

from functools import partial
from typing import Literal, Self

from pydantic import model_validator

from comt_cli.methods.base import Wiring
from comt_cli.methods.sas import SASMethod


class SASResNetMethod(SASMethod):
    """`alpha_bias`, `beta_bias`, `gamma_bias`: where the gates' last biases start; `reads`: what the gates look at;
    `norm`, `norm_over`: what x + F goes through."""

    streams = ("maps",)
    later = frozenset()
    alpha_bias: float = 3.0
    beta_bias: float = -3.0
    reads: Literal["pooled", "pixel"] = "pooled"
    norm: Literal["layer", "batch"] = "layer"
    norm_over: Literal["sample", "pixel"] = "sample"

    @model_validator(mode="after")
    def _norm_fits(self) -> Self:
        if self.norm == "batch" and self.norm_over != "sample":
            raise ValueError("norm_over: belongs to norm: layer; batch norm is over the batch, leave the key out")
        return self

    def wiring(self) -> Wiring:
        from comt_cli.layers.convolution import MapBatchNorm, MapLayerNorm
        from comt_cli.layers.residual.scaled import SelfAdaptiveScaling

        norm = MapBatchNorm if self.norm == "batch" else partial(MapLayerNorm, over=self.norm_over)
        return Wiring(partial(SelfAdaptiveScaling, **self.model_dump(exclude={"norm", "norm_over"}), norm=norm))
