"""`swiglu` in Triton: definition in `__init__`, kernels in `kernels.triton.sites`."""

from __future__ import annotations

from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton import launch, sites
from comt_cli.kernels.triton.sums import Parts


def swiglu(product_TC: Tensor, modulation: Modulation, width: int, padded: int) -> Tensor:
    """Return h, [T, padded], in the type of the product, with zeros from column `width` on. See `reference`."""
    product_TC, layout = launch.unit_stride(product_TC), launch.Layout(modulation, (width, width))
    h_TF = product_TC.new_empty(len(product_TC), padded)
    sites.forward(layout, layout.tile("swiglu", h_TF.dtype), slice(2), product_TC, h_TF, padded)
    return h_TF


def swiglu_backward(
    dh_TF: Tensor, product_TC: Tensor, modulation: Modulation, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dproduct, [T, C], in the type of the product, and dWc and dws in fp32."""
    dh_TF, product_TC = launch.unit_stride(dh_TF), launch.unit_stride(product_TC)
    parts = Parts.of("swiglu_backward", modulation, (width, width), product_TC, max)
    dproduct_TC = product_TC.new_empty(product_TC.shape)
    sites.backward(parts, slice(2), product_TC, dh_TF, dproduct_TC)
    dWc, dws = parts.finish(product_TC, 2 * width, dproduct_TC)
    return dproduct_TC, dWc, dws
