"""silu(gate) * up of two gated sites. The input is saved for the backward pass, as without gates.

Shapes as in `kernels.gates`; F channels of each site.
"""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor

from comt_cli.kernels.gates import Modulation, gated_sites
from comt_cli.kernels.operators import differentiable, like_gradients


def reference(product_TC: Tensor, modulation: Modulation, width: int, padded: int) -> Tensor:
    """silu(gate) * up of the two gated sites, F = `width` channels each, padded with zeros: [T, padded]."""
    gate_TF, up_TF = gated_sites(product_TC, modulation, [width, width])
    return F.pad(F.silu(gate_TF) * up_TF, (0, padded - width))


_swiglu = differentiable(
    "swiglu",
    reference,
    lambda product, modulation, width, padded: product.new_empty(product.shape[0], padded),
    saved=3,
    incoming="dh",
    empty_gradients=lambda saved: like_gradients(*saved[:2]),
)


def swiglu(product_TC: Tensor, modulation: Modulation, width: int, padded: int) -> Tensor:
    """As `reference`, by a hand-written kernel: [T, C] -> [T, padded]."""
    return cast(Tensor, _swiglu(product_TC, modulation, width, padded))
