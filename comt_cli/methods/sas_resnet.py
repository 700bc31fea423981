r"""Self-Adaptive Scaling of ResNets: learned weights on skip path, branch, and normalised sum (SAS, 2019, Eq. 2, 4).

$$y = a x + b F + (1 - a)(1 - b)\,\mathrm{LN}(x + F)$$

a and b come from two-layer tanh gates that read [x; F]. Their last biases start at +3 (a) and -3 (b). `gamma: free` is
footnote 1, `norm: batch` Table 7, `gate: single-layer` the other gate.
Deviations: The paper has vectors where a ResNet has feature maps. It states neither how gates read a map nor over which
axes LN normalises. By default, gates read x and F averaged over the pixels, a and b are one number per image, and LN
normalises the whole map of an image, with gain and shift per channel. `reads: pixel` and `norm_over: pixel` treat every
pixel as a vector. The gates' weights start as N(0, 0.02^2), like all linear layers here; the paper refers to He et al.
2016b, whose networks have no such layers. The bias of a free gamma is not stated and starts at 0. No public code is
known.
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
            raise ValueError("norm_over: needs norm: layer; batch norm is over the batch, leave the key out")
        return self

    def wiring(self) -> Wiring:
        from comt_cli.layers.convolution import MapBatchNorm, MapLayerNorm
        from comt_cli.layers.residual.scaled import SelfAdaptiveScaling

        norm = MapBatchNorm if self.norm == "batch" else partial(MapLayerNorm, over=self.norm_over)
        return Wiring(partial(SelfAdaptiveScaling, **self.model_dump(exclude={"norm", "norm_over"}), norm=norm))
