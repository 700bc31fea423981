"""`modulate` in Triton: one launch for a gated site (`kernels.triton.sites`); what is not gated is copied."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.operators import unit_stride
from comt_cli.kernels.triton import launch, sites
from comt_cli.kernels.triton.sums import Parts


def modulate(product_TC: Tensor, modulation: Modulation, widths: Sequence[int]) -> Tensor:
    """Return zhat, [T, M], in the type of the product. See `reference`."""
    product_TC, layout = unit_stride(product_TC), launch.Layout(modulation, widths)
    zhat_TM = product_TC.new_empty(len(product_TC), layout.width)
    tile = layout.tile("modulate", zhat_TM.dtype)
    for i, site in enumerate(layout.sites):
        out_TN = zhat_TM.narrow(1, site.first, site.width)
        if site.gated:
            sites.forward(layout, tile, slice(i, i + 1), product_TC, out_TN, site.width)
        else:
            out_TN.copy_(product_TC.narrow(1, site.first, site.width))
    return zhat_TM


def modulate_backward(
    G_TM: Tensor, product_TC: Tensor, modulation: Modulation, widths: Sequence[int]
) -> tuple[Tensor, ...]:
    """Return dproduct, [T, C], in the type of the product, and dWc and dws in fp32, for G = dL/dzhat."""
    G_TM, product_TC, layout = unit_stride(G_TM), unit_stride(product_TC), launch.Layout(modulation, widths)
    parts = Parts(layout, layout.tile("modulate_backward", product_TC.dtype), product_TC)
    dproduct_TC = product_TC.new_empty(product_TC.shape)
    for i, site in enumerate(layout.sites):
        G_TN = G_TM.narrow(1, site.first, site.width)
        if site.gated:
            sites.backward(parts, slice(i, i + 1), product_TC, G_TN, dproduct_TC)
        else:
            dproduct_TC.narrow(1, site.first, site.width).copy_(G_TN)
    return dproduct_TC, *parts.finish(product_TC, layout.width, dproduct_TC)
