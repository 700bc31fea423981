"""silu(gate) * up of two gated sites. Its input is kept for the backward pass, as an ungated one keeps it.

Shapes as in `kernels.gates`, and F channels of each site.
"""

# ruff: noqa: ARG001 - what prepares an operator's derivative, or stands in for it, is given all its arguments

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from comt_cli.kernels.gates import Modulation, gated_sites
from comt_cli.kernels.operators import GATES, like_gradients, operator, rows


def reference(product_TC: Tensor, modulation: Modulation, width: int, padded: int) -> Tensor:
    """silu(gate) * up of the two gated sites, F = `width` channels each, with zeros behind: [T, padded]."""
    gate_TF, up_TF = gated_sites(product_TC, modulation, [width, width])
    return F.pad(F.silu(gate_TF) * up_TF, (0, padded - width))


def _fake(product: Tensor, modulation: Modulation, width: int, padded: int) -> Tensor:
    return product.new_empty(product.shape[0], padded)


def _fake_backward(dh: Tensor, product: Tensor, modulation: Modulation, width: int) -> Any:
    return like_gradients(product, modulation)


def _keep(inputs: Any, h: Tensor) -> Any:
    return inputs[:-1]


def _gradients(kept: Any, dh: Tensor) -> Any:
    dproduct, *dgates = _swiglu_backward(rows(dh), *kept)
    return dproduct, dgates, None, None


_swiglu = operator(
    "swiglu", ["Tensor product", GATES, "int width", "int padded"], "Tensor", _fake, keep=_keep, gradients=_gradients
)
_swiglu_backward = operator(
    "swiglu_backward",
    ["Tensor dh", "Tensor product", GATES, "int width"],
    "(Tensor, Tensor, Tensor)",
    _fake_backward,
)


def swiglu(product_TC: Tensor, modulation: Modulation, width: int, padded: int) -> Tensor:
    """As `reference`, by a hand-written kernel: [T, C] -> [T, padded]."""
    h_TF: Tensor = _swiglu(product_TC, modulation, width, padded)
    return h_TF
