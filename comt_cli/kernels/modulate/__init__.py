"""Every site's columns times its gate: the form for sites whose consumer has no kernel of its own.

The product is kept for the backward pass, no gate and no logit. Shapes as in `kernels.gates`.
"""

# ruff: noqa: ARG001 - what prepares an operator's derivative, or stands in for it, is given all its arguments

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from comt_cli.kernels.gates import Modulation, gated_sites
from comt_cli.kernels.operators import GATES, like_gradients, operator, rows


def reference(product_TC: Tensor, modulation: Modulation, widths: Sequence[int]) -> Tensor:
    """Every site's columns times its gate, side by side: [T, M]."""
    return torch.cat(gated_sites(product_TC, modulation, widths), dim=-1)


def _fake(product: Tensor, modulation: Modulation, widths: Sequence[int]) -> Tensor:
    return product.new_empty(product.shape[0], sum(widths))


def _fake_backward(G: Tensor, product: Tensor, modulation: Modulation, widths: Sequence[int]) -> Any:
    return like_gradients(product, modulation)


def _keep(inputs: Any, zhat: Tensor) -> Any:
    return inputs


def _gradients(kept: Any, G: Tensor) -> Any:
    dproduct, *dgates = _modulate_backward(rows(G), *kept)
    return dproduct, dgates, None


_modulate = operator(
    "modulate", ["Tensor product", GATES, "int[] widths"], "Tensor", _fake, keep=_keep, gradients=_gradients
)
_modulate_backward = operator(
    "modulate_backward",
    ["Tensor G", "Tensor product", GATES, "int[] widths"],
    "(Tensor, Tensor, Tensor)",
    _fake_backward,
)


def modulate(product_TC: Tensor, modulation: Modulation, widths: Sequence[int]) -> Tensor:
    """As `reference`, by a hand-written kernel: [T, C] -> [T, M]."""
    zhat_TM: Tensor = _modulate(product_TC, modulation, widths)
    return zhat_TM
