"""`swiglu` in Triton: definition in `__init__`, kernels in `kernels.triton.sites`."""

from __future__ import annotations

from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.operators import unit_stride
from comt_cli.kernels.triton import launch, sites
from comt_cli.kernels.triton.sums import Parts


def swiglu(product_TC: Tensor, modulation: Modulation, width: int, padded: int) -> Tensor:
    """Return h, [T, padded], in the type of the product, with zeros from column `width` on. See `reference`."""
    product_TC, layout = unit_stride(product_TC), launch.Layout(modulation, (width, width))
    h_TF = product_TC.new_empty(len(product_TC), padded)
    sites.forward(layout, layout.tile("swiglu", h_TF.dtype), slice(2), product_TC, h_TF, padded)
    return h_TF


def swiglu_backward(dh_TF: Tensor, product_TC: Tensor, modulation: Modulation, width: int) -> tuple[Tensor, ...]:
    """Return dproduct, [T, C], in the type of the product, and dWc and dws in fp32."""
    product_TC, layout = unit_stride(product_TC), launch.Layout(modulation, (width, width))
    parts = Parts(layout, layout.tile("swiglu_backward", product_TC.dtype), product_TC)
    dproduct_TC = product_TC.new_empty(product_TC.shape)
    sites.backward(parts, slice(2), product_TC, unit_stride(dh_TF), dproduct_TC)
    return dproduct_TC, *parts.finish(product_TC, 2 * width, dproduct_TC)
