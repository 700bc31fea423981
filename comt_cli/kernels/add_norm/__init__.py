"""The residual addition of a gated site, and the RMSNorm behind it.

The sum y, 1 / rms(y) and the product are kept for the backward pass. Shapes as in `kernels.gates`, and D channels of
the stream and of the site.
"""

# ruff: noqa: ARG001 - what prepares an operator's derivative, or stands in for it, is given all its arguments

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from comt_cli.kernels.gates import Modulation, gated_sites
from comt_cli.kernels.operators import GATES, like_gradients, operator, rows


def reference(
    x_TD: Tensor, product_TC: Tensor, modulation: Modulation, gain_D: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The stream x plus one gated site, y, in x's type; its RMSNorm in the product's type; and 1 / rms(y), [T]."""
    (zhat_TD,) = gated_sites(product_TC, modulation, [x_TD.shape[-1]])
    y_TD = (x_TD + zhat_TD).to(x_TD.dtype)
    wide_TD = y_TD.to(torch.promote_types(y_TD.dtype, torch.float32))
    rstd_T = torch.rsqrt(wide_TD.square().mean(-1) + epsilon)
    return y_TD, (wide_TD * rstd_T.unsqueeze(-1) * gain_D).to(product_TC.dtype), rstd_T


def _fake(x: Tensor, product: Tensor, *how: Any) -> Any:
    return x.new_empty(x.shape), product.new_empty(x.shape), x.new_empty(x.shape[0], dtype=torch.float32)


def _fake_backward(
    dy: Tensor, dn: Tensor, y: Tensor, rstd: Tensor, product: Tensor | None, modulation: Modulation, gain: Tensor
) -> Any:
    dgain = gain.new_empty(gain.shape, dtype=torch.float32)
    return y.new_empty(y.shape), *like_gradients(y.new_empty(0) if product is None else product, modulation), dgain


def _keep(inputs: Any, output: Any) -> Any:
    x, product, modulation, gain, _ = inputs
    y, _, rstd = output
    if not any(modulation.gated) and product.shape == x.shape:
        product = None  # only its shape and type would be asked for
    return y, rstd, product, modulation, gain


def _gradients(kept: Any, dy: Tensor, dn: Tensor, _: Tensor) -> Any:
    y, rstd, product, modulation, gain = kept
    dy, dn = rows(dy), rows(dn)
    if product is None and dn.dtype != y.dtype:
        product = dn  # its gradient is rounded to another type than dx
    dx, dproduct, dWc, dws, dgain = _add_norm_backward(dy, dn, y, rstd, product, modulation, gain)
    return dx, dx if product is None else dproduct, (dWc, dws), dgain.to(gain.dtype), None


_add_norm = operator(
    "add_norm",
    ["Tensor x", "Tensor product", GATES, "Tensor gain", "float epsilon"],
    "(Tensor, Tensor, Tensor)",
    _fake,
    keep=_keep,
    gradients=_gradients,
)
_add_norm_backward = operator(
    "add_norm_backward",
    [*(f"Tensor {each}" for each in ("dy", "dn", "y", "rstd")), "Tensor? product", GATES, "Tensor gain"],
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake_backward,
)


def add_norm(
    x_TD: Tensor, product_TC: Tensor, modulation: Modulation, gain_D: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """The stream x plus one gated site, and its RMSNorm, [T, D] each, as `reference`, by a hand-written kernel."""
    y, n, _ = _add_norm(x_TD, product_TC, modulation, gain_D, epsilon)
    return y, n
