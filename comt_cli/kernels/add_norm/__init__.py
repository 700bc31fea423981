"""Residual add of a gated site, and the RMSNorm that follows.

The sum y, 1 / rms(y) and the product are saved for the backward pass. Shapes as in `kernels.gates`; D channels of the
stream and of the site.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from comt_cli.kernels.gates import Modulation, gated_sites
from comt_cli.kernels.operators import differentiable, like_gradients, unit_stride


def reference(
    x_TD: Tensor, product_TC: Tensor, modulation: Modulation, gain_D: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Stream x plus one gated site, y, in the type of x; its RMSNorm in the product's type; and 1 / rms(y), [T]."""
    (zhat_TD,) = gated_sites(product_TC, modulation, [x_TD.shape[-1]])
    y_TD = (x_TD + zhat_TD).to(x_TD.dtype)
    wide_TD = y_TD.to(torch.promote_types(y_TD.dtype, torch.float32))
    rstd_T = torch.rsqrt(wide_TD.square().mean(-1) + epsilon)
    return y_TD, (wide_TD * rstd_T.unsqueeze(-1) * gain_D).to(product_TC.dtype), rstd_T


class Saved(NamedTuple):
    """`product` is None if it has no gates and the stream's shape and type: nothing else of it would be needed."""

    y: Tensor
    rstd: Tensor
    product: Tensor | None
    modulation: Modulation
    gain: Tensor


def _empty(
    x: Tensor, product: Tensor, modulation: Modulation, gain: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), product.new_empty(x.shape), x.new_empty(x.shape[0], dtype=torch.float32)


def _empty_gradients(saved: Saved) -> tuple[Tensor, ...]:
    y, _, product, modulation, gain = saved
    dgain = gain.new_empty(gain.shape, dtype=torch.float32)
    return y.new_empty(y.shape), *like_gradients(y.new_empty(0) if product is None else product, modulation), dgain


def _save(given: Any, output: Any) -> Saved:
    x, product, modulation, gain, _ = given
    y, _, rstd = output
    needless = not any(modulation.gated) and product.shape == x.shape
    return Saved(y, rstd, None if needless else product, modulation, gain)


def _gradients(backward: Any, saved: Saved, dy: Tensor, dn: Tensor) -> dict[str, Any]:
    """The product's gradient is that of x if the kernel returns none for it."""
    dy, dn = unit_stride(dy), unit_stride(dn)
    if saved.product is None and dn.dtype != saved.y.dtype:
        saved = saved._replace(product=dn)  # its gradient is rounded to another type than dx
    dx, dproduct, *dgates, dgain = backward(dy, dn, *saved)
    of_product = dx if saved.product is None else dproduct
    return {"x_TD": dx, "product_TC": of_product, "modulation": dgates, "gain_D": dgain}


_add_norm = differentiable(
    "add_norm", reference, _empty, saved=Saved, incoming="dy dn", empty_gradients=_empty_gradients, results=5,
    gradients=_gradients, save=_save,
)  # fmt: skip


def add_norm(
    x_TD: Tensor, product_TC: Tensor, modulation: Modulation, gain_D: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Stream x plus one gated site, and its RMSNorm, [T, D] each, as `reference`, by a hand-written kernel."""
    y, n, _ = _add_norm(x_TD, product_TC, modulation, gain_D, epsilon)
    return y, n
