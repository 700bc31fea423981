"""`modulate` in Triton: one launch for a gated site (`kernels.triton.sites`); what is not gated is copied."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.triton import launch, sites
from comt_cli.kernels.triton.sums import Parts


def modulate(product_TC: Tensor, modulation: Modulation, widths: Sequence[int]) -> Tensor:
    """Return zhat, [T, M], in the type of the product. See `reference`."""
    product_TC, layout = launch.unit_stride(product_TC), launch.Layout(modulation, widths)
    zhat_TM = product_TC.new_empty(len(product_TC), layout.width)
    tile = layout.tile("modulate", zhat_TM.dtype)
    for i, site in enumerate(layout.sites):
        if site.gated:
            sites.forward(layout, tile, slice(i, i + 1), product_TC, zhat_TM[:, site.columns], site.width)
        else:
            zhat_TM[:, site.columns] = product_TC[:, site.columns]
    return zhat_TM


def modulate_backward(
    G_TM: Tensor, product_TC: Tensor, modulation: Modulation, widths: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dproduct, [T, C], in the type of the product, and dWc and dws in fp32, for G = dL/dzhat."""
    G_TM, product_TC = launch.unit_stride(G_TM), launch.unit_stride(product_TC)
    parts = Parts.of("modulate_backward", modulation, widths, product_TC, max)
    dproduct_TC = product_TC.new_empty(product_TC.shape)
    for i, site in enumerate(parts.layout.sites):
        if site.gated:
            sites.backward(parts, slice(i, i + 1), product_TC, G_TM[:, site.columns], dproduct_TC)
        else:
            dproduct_TC[:, site.columns] = G_TM[:, site.columns]
    dWc, dws = parts.finish(product_TC, parts.layout.width, dproduct_TC)
    return dproduct_TC, dWc, dws
