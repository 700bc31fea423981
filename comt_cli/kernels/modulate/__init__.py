"""Columns of every site times its gate, for sites whose next operation has no kernel.

The product is saved for the backward pass; gates and logits are not. Shapes as in `kernels.gates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from comt_cli.kernels.gates import Modulation, gated_sites
from comt_cli.kernels.operators import differentiable, like_gradients


def reference(product_TC: Tensor, modulation: Modulation, widths: Sequence[int]) -> Tensor:
    """Columns of every site times its gate, concatenated: [T, M]."""
    return torch.cat(gated_sites(product_TC, modulation, widths), dim=-1)


_modulate = differentiable(
    "modulate",
    reference,
    lambda product, modulation, widths: product.new_empty(product.shape[0], sum(widths)),
    saved=3,
    incoming="G",
    empty_gradients=lambda saved: like_gradients(*saved[:2]),
)


def modulate(product_TC: Tensor, modulation: Modulation, widths: Sequence[int]) -> Tensor:
    """As `reference`, by a hand-written kernel: [T, C] -> [T, M]."""
    return cast(Tensor, _modulate(product_TC, modulation, widths))
