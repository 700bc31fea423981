"""The fused operations in C++, for fp32 and bf16 tensors on a CPU: definitions in `kernels/reference.py`.

Compiled on first use (`build.py`); `available()` says whether that works here. Every function computes in fp32 and
returns the gradients of parameters in fp32. For one number of threads the same bits come out every time.

Shapes: T rows, C columns of a product, M those of its sites, N of one of them, S gated sites, R = `rank`;
Wc [sum of N of the gated sites, R] and ws [S, R] in any float type, either may be None.

Raises:
    TypeError: tensors of another type than fp32 or bf16.
    ValueError: shapes that do not fit together, or a last dimension with a stride.
    Unavailable: the kernels cannot be compiled here.
    MemoryError: not enough memory for the sums of all threads.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from comt_cli.kernels.cpu.build import Unavailable, available, library
from comt_cli.kernels.cpu.calls import TYPES, row, type_code

__all__ = [
    "Unavailable",
    "add_norm",
    "add_norm_backward",
    "available",
    "heads",
    "heads_backward",
    "modulate",
    "modulate_backward",
    "swiglu",
    "swiglu_backward",
]


class _Gates(ctypes.Structure):  # GateArguments in gates.h
    _fields_ = (
        ("Wc", ctypes.c_void_p),
        ("ws", ctypes.c_void_p),
        ("Wc_stride", ctypes.c_int64),
        ("ws_stride", ctypes.c_int64),
        ("Wc_type", ctypes.c_int32),
        ("ws_type", ctypes.c_int32),
        ("gated", ctypes.c_int64),
        ("rank", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


# What the functions take: i and j integers of 32 and 64 bits, p a pointer, d a double.
_SIGNATURES = {
    "modulate": "iipip" + "j" + "pjpj",
    "modulate_backward": "iipip" + "j" + "pjpjpj" + "pjipp",
    "heads": "iip" + "j" + "pj" + "pjpjjjjj" + "pppp",
    "heads_backward": "iip" + "j" + "pjpjpjpjpjpjpj" + "pjpjjjjj" + "pjpp",
    "swiglu": "iip" + "j" + "pjj" + "pj",
    "swiglu_backward": "iip" + "j" + "pjpjj" + "pjpp",
    "add_norm": "iiip" + "jj" + "pjpjp" + "d" + "ppp",
    "add_norm_backward": "iiip" + "jj" + "pjpjpjppjp" + "ppjppp",
}
_C_TYPES = {"i": ctypes.c_int32, "j": ctypes.c_int64, "p": ctypes.c_void_p, "d": ctypes.c_double}


@functools.cache
def _function(name: str) -> Callable[..., int]:
    function = getattr(library(), f"comt_{name}")
    function.argtypes = [_C_TYPES[letter] for letter in _SIGNATURES[name]]
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


def _call(name: str, *arguments: object) -> None:
    if _function(name)(torch.get_num_threads(), *arguments):
        raise MemoryError(f"not enough memory for the gates of {name}")


@functools.lru_cache(maxsize=64)
def _widths(widths: tuple[int, ...]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(widths))(*widths)


def _product(product_TC: Tensor, needed: int) -> tuple[int, int, int]:
    """Rows, address and row stride of a product, which must have at least the columns `needed`."""
    rows, columns = product_TC.shape
    if columns < needed:
        raise ValueError(f"the product has {columns} columns, fewer than the {needed} of its sites and gates")
    return (rows, *row(product_TC, rows, columns, product_TC.dtype, "the product"))


class _Call:
    """The gates of one call as C takes them, and the gradients they will have. Keeps what they point to alive."""

    def __init__(
        self,
        Wc: Tensor | None,
        ws: Tensor | None,
        scale: float,
        rank: int,
        gated: Sequence[bool],
        widths: Sequence[int],
    ) -> None:
        if len(gated) != len(widths) or len(gated) > 63:
            raise ValueError(f"{len(gated)} marks of gated sites for {len(widths)} widths (at most 63)")
        self.sites, self.total = len(widths), sum(widths)
        self.gates = sum(gated)
        self.u_columns = self.gates * rank
        self.channels = sum(n for n, has in zip(widths, gated, strict=True) if has)
        mask = sum(1 << site for site, has in enumerate(gated) if has)
        self.rank = rank if mask else 0
        Wc, ws = (Wc, ws) if mask else (None, None)
        if (Wc is not None or ws is not None) and rank < 1:
            raise ValueError(f"gates of rank {rank}")
        self.Wc, self.ws = (W if W is None or W.dtype in TYPES else W.float() for W in (Wc, ws))
        Wc_row, Wc_type = self._matrix(self.Wc, self.channels, "Wc")
        ws_row, ws_type = self._matrix(self.ws, self.gates, "ws")
        self.arguments = _Gates(Wc_row[0], ws_row[0], Wc_row[1], ws_row[1], Wc_type, ws_type, mask, self.rank, scale)
        self.address = ctypes.addressof(self.arguments)

    def _matrix(self, W: Tensor | None, rows: int, name: str) -> tuple[tuple[int | None, int], int]:
        if W is None:
            return (None, 0), 0
        return row(W, rows, self.rank, W.dtype, name), type_code(W)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Uninitialised dWc and dws, of no elements where there is no Wc or no ws."""
        return (
            torch.empty(0) if self.Wc is None else torch.empty(self.channels, self.rank),
            torch.empty(0) if self.ws is None else torch.empty(self.gates, self.rank),
        )

    def dproduct(self, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """An uninitialised gradient of the product."""
        if columns < self.total + self.u_columns:
            raise ValueError(f"{columns} columns, fewer than the {self.total + self.u_columns} of the sites and gates")
        return torch.empty(rows, columns, dtype=dtype)


def modulate(
    product_TC: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    scale: float,
    rank: int,
    gated: Sequence[bool],
    widths: Sequence[int],
) -> Tensor:
    """Every site's columns times its gate, side by side: zhat, [T, M]."""
    call, code = _Call(Wc, ws, scale, rank, gated, widths), type_code(product_TC)
    rows, *product = _product(product_TC, call.total + call.u_columns)
    zhat = torch.empty(rows, call.total, dtype=product_TC.dtype)
    sites = _widths(tuple(widths))
    _call(
        "modulate", code, call.address, call.sites, ctypes.addressof(sites), rows, *product, zhat.data_ptr(), call.total
    )
    return zhat


def modulate_backward(
    G_TM: Tensor,
    z_TM: Tensor,
    u_TU: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    scale: float,
    rank: int,
    gated: Sequence[bool],
    widths: Sequence[int],
    columns: int,
    z_is_output: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for the product, [T, columns], for Wc and for ws; `z_TM` holds z, or zhat if `z_is_output`."""
    call, code = _Call(Wc, ws, scale, rank, gated, widths), type_code(G_TM)
    rows, dtype = len(G_TM), G_TM.dtype
    dproduct, (dWc, dws) = call.dproduct(rows, columns, dtype), call.gradients()
    sites = _widths(tuple(widths))
    _call(
        "modulate_backward",
        code,
        call.address,
        call.sites,
        ctypes.addressof(sites),
        rows,
        *row(G_TM, rows, call.total, dtype, "G"),
        *row(z_TM, rows, call.total, dtype, "z"),
        *row(u_TU, rows, call.u_columns, dtype, "u"),
        dproduct.data_ptr(),
        columns,
        z_is_output,
        dWc.data_ptr(),
        dws.data_ptr(),
    )
    return dproduct, dWc, dws


class _Tables:
    """The rotation's tables as C takes them, in fp32."""

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
    product_TC: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    cos_PE: Tensor,
    sin_PE: Tensor,
    scale: float,
    rank: int,
    gated: Sequence[bool],
    heads: int,
    kv_heads: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries and keys, gated and rotated, and gated values, [T, heads * E] each; and a copy of the u, [T, S R]."""
    tables, code = _Tables(cos_PE, sin_PE), type_code(product_TC)
    wide, narrow = heads * tables.head, kv_heads * tables.head
    call = _Call(Wc, ws, scale, rank, gated, (wide, narrow, narrow))
    rows, *product = _product(product_TC, call.total + call.u_columns)
    dtype = product_TC.dtype
    q, k, v, u = (torch.empty(rows, n, dtype=dtype) for n in (wide, narrow, narrow, call.u_columns))
    outputs = (q.data_ptr(), k.data_ptr(), v.data_ptr(), u.data_ptr())
    _call("heads", code, call.address, rows, *product, *tables.arguments, heads, kv_heads, *outputs)
    return q, k, v, u


def heads_backward(
    dq_TN: Tensor,
    dk_TN: Tensor,
    dv_TN: Tensor,
    q_TN: Tensor,
    k_TN: Tensor,
    v_TN: Tensor,
    u_TU: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    cos_PE: Tensor,
    sin_PE: Tensor,
    scale: float,
    rank: int,
    gated: Sequence[bool],
    heads: int,
    kv_heads: int,
    columns: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for the product, [T, columns], for Wc and for ws, from the outputs of `heads` and their gradients."""
    tables, code = _Tables(cos_PE, sin_PE), type_code(dq_TN)
    wide, narrow = heads * tables.head, kv_heads * tables.head
    call = _Call(Wc, ws, scale, rank, gated, (wide, narrow, narrow))
    rows, dtype = len(dq_TN), dq_TN.dtype
    dproduct, (dWc, dws) = call.dproduct(rows, columns, dtype), call.gradients()
    _call(
        "heads_backward",
        code,
        call.address,
        rows,
        *row(dq_TN, rows, wide, dtype, "dq"),
        *row(dk_TN, rows, narrow, dtype, "dk"),
        *row(dv_TN, rows, narrow, dtype, "dv"),
        *row(q_TN, rows, wide, dtype, "q"),
        *row(k_TN, rows, narrow, dtype, "k"),
        *row(v_TN, rows, narrow, dtype, "v"),
        *row(u_TU, rows, call.u_columns, dtype, "u"),
        *tables.arguments,
        heads,
        kv_heads,
        dproduct.data_ptr(),
        columns,
        dWc.data_ptr(),
        dws.data_ptr(),
    )
    return dproduct, dWc, dws


def swiglu(
    product_TC: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    scale: float,
    rank: int,
    gated: Sequence[bool],
    width: int,
    padded: int,
) -> Tensor:
    """silu(gate) * up of the two gated sites, F = `width` channels each, with zeros behind: [T, padded]."""
    call, code = _Call(Wc, ws, scale, rank, gated, (width, width)), type_code(product_TC)
    rows, *product = _product(product_TC, call.total + call.u_columns)
    if padded < width:
        raise ValueError(f"{width} channels do not fit in {padded}")
    h = torch.empty(rows, padded, dtype=product_TC.dtype)
    _call("swiglu", code, call.address, rows, *product, width, h.data_ptr(), padded)
    return h


def swiglu_backward(
    dh_TF: Tensor,
    product_TC: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    scale: float,
    rank: int,
    gated: Sequence[bool],
    width: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for the product, for Wc and for ws, from the product and the gradient of `swiglu`'s output."""
    call, code = _Call(Wc, ws, scale, rank, gated, (width, width)), type_code(product_TC)
    rows, *product = _product(product_TC, call.total + call.u_columns)
    columns, padded = product_TC.shape[1], dh_TF.shape[1]
    if padded < width:
        raise ValueError(f"the gradient has {padded} columns, fewer than {width}")
    dproduct, (dWc, dws) = call.dproduct(rows, columns, product_TC.dtype), call.gradients()
    dh = row(dh_TF, rows, padded, product_TC.dtype, "dh")
    gradients = (dproduct.data_ptr(), columns, dWc.data_ptr(), dws.data_ptr())
    _call("swiglu_backward", code, call.address, rows, *dh, *product, width, *gradients)
    return dproduct, dWc, dws


def add_norm(
    x_TD: Tensor,
    product_TC: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    gain_D: Tensor,
    scale: float,
    rank: int,
    gated: Sequence[bool],
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The stream x plus one gated site, y, in x's type; its RMSNorm in the product's type; and 1 / rms(y), [T]."""
    width = x_TD.shape[1]
    call, stream, code = _Call(Wc, ws, scale, rank, gated, (width,)), type_code(x_TD), type_code(product_TC)
    rows, *product = _product(product_TC, call.total + call.u_columns)
    x, gain = row(x_TD, rows, width, x_TD.dtype, "x"), _gain(gain_D, width)
    y, n = (torch.empty(rows, width, dtype=dtype) for dtype in (x_TD.dtype, product_TC.dtype))
    rstd = torch.empty(rows)
    outputs = (y.data_ptr(), n.data_ptr(), rstd.data_ptr())
    _call("add_norm", stream, code, call.address, rows, width, *x, *product, gain.data_ptr(), epsilon, *outputs)
    return y, n, rstd


def add_norm_backward(
    dy_TD: Tensor,
    dn_TD: Tensor,
    y_TD: Tensor,
    rstd_T: Tensor,
    product_TC: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    gain_D: Tensor,
    scale: float,
    rank: int,
    gated: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients for x, the product, Wc, ws and the gain, from what `add_norm` returned and the gradients of y and n."""
    width = y_TD.shape[1]
    call, stream, code = _Call(Wc, ws, scale, rank, gated, (width,)), type_code(y_TD), type_code(product_TC)
    rows, *product = _product(product_TC, call.total + call.u_columns)
    columns, gain, rstd = product_TC.shape[1], _gain(gain_D, width), rstd_T.float().contiguous()
    if rstd.shape != (rows,):
        raise ValueError(f"rstd has the shape {tuple(rstd.shape)}, not {(rows,)}")
    dx, dproduct = torch.empty(rows, width, dtype=y_TD.dtype), call.dproduct(rows, columns, product_TC.dtype)
    (dWc, dws), dgain = call.gradients(), torch.empty(width)
    _call(
        "add_norm_backward",
        stream,
        code,
        call.address,
        rows,
        width,
        *row(dy_TD, rows, width, y_TD.dtype, "dy"),
        *row(dn_TD, rows, width, product_TC.dtype, "dn"),
        *row(y_TD, rows, width, y_TD.dtype, "y"),
        rstd.data_ptr(),
        *product,
        gain.data_ptr(),
        dx.data_ptr(),
        dproduct.data_ptr(),
        columns,
        dWc.data_ptr(),
        dws.data_ptr(),
        dgain.data_ptr(),
    )
    return dx, dproduct, dWc, dws, dgain


def _gain(gain_D: Tensor, width: int) -> Tensor:
    if gain_D.shape != (width,):
        raise ValueError(f"the gain has the shape {tuple(gain_D.shape)}, not {(width,)}")
    return gain_D.float().contiguous()
