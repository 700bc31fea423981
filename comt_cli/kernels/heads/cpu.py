"""`heads` in C++: definition in `__init__`, errors in `kernels.cpu`."""

from __future__ import annotations

import torch
from torch import Tensor

from comt_cli.kernels.cpu.calls import row, run, type_code
from comt_cli.kernels.cpu.gates import Gates
from comt_cli.kernels.gates import Modulation


class _Tables:
    """The rotation's tables in fp32, and as C takes them. Keeps what they point to alive."""

    def __init__(self, cos_PE: Tensor, sin_PE: Tensor) -> None:
        self.cos, self.sin = cos_PE.float(), sin_PE.float()
        period, half = cos_PE.shape
        self.head = 2 * half
        self.arguments = (
            *row(self.cos, period, half, torch.float32, "cos"),
            *row(self.sin, period, half, torch.float32, "sin"),
            period,
            self.head,
        )


def heads(
    product_TC: Tensor, modulation: Modulation, cos_PE: Tensor, sin_PE: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys, gated and rotated, and gated values, [T, heads * E] each; and a copy of the u, [T, S R]."""
    tables, code = _Tables(cos_PE, sin_PE), type_code(product_TC)
    widths = [each * tables.head for each in (heads, kv_heads, kv_heads)]
    gates = Gates(modulation, widths)
    rows, *product = gates.product(product_TC)
    q, k, v, u = (torch.empty(rows, n, dtype=product_TC.dtype) for n in (*widths, modulation.columns))
    outputs = (q.data_ptr(), k.data_ptr(), v.data_ptr(), u.data_ptr())
    given = (code, gates.address, rows, *product, *tables.arguments, heads, kv_heads)
    run("heads", "ipj pj pjpjjjjj pppp", *given, *outputs)
    return q, k, v, u


def heads_backward(
    dq_TN: Tensor,
    dk_TN: Tensor,
    dv_TN: Tensor,
    q_TN: Tensor,
    k_TN: Tensor,
    v_TN: Tensor,
    u_TU: Tensor,
    modulation: Modulation,
    cos_PE: Tensor,
    sin_PE: Tensor,
    heads: int,
    kv_heads: int,
    columns: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for the product, [T, columns], for Wc and for ws, from the outputs of `heads` and their gradients."""
    tables, code = _Tables(cos_PE, sin_PE), type_code(dq_TN)
    wide, narrow = heads * tables.head, kv_heads * tables.head
    gates = Gates(modulation, (wide, narrow, narrow))
    rows, dtype = len(dq_TN), dq_TN.dtype
    if columns < gates.columns:
        raise ValueError(f"{columns} columns, fewer than the {gates.columns} of the sites and gates")
    dproduct, (dWc, dws) = torch.empty(rows, columns, dtype=dtype), gates.gradients()
    activations = (
        *row(dq_TN, rows, wide, dtype, "dq"),
        *row(dk_TN, rows, narrow, dtype, "dk"),
        *row(dv_TN, rows, narrow, dtype, "dv"),
        *row(q_TN, rows, wide, dtype, "q"),
        *row(k_TN, rows, narrow, dtype, "k"),
        *row(v_TN, rows, narrow, dtype, "v"),
        *row(u_TU, rows, modulation.columns, dtype, "u"),
    )
    given = (code, gates.address, rows, *activations, *tables.arguments, heads, kv_heads)
    gradients = (dproduct.data_ptr(), columns, dWc.data_ptr(), dws.data_ptr())
    run("heads_backward", "ipj pjpjpjpjpjpjpj pjpjjjjj pjpp", *given, *gradients)
    return dproduct, dWc, dws
