"""The operations of `reference` as custom operators of PyTorch, forward and backward, computed by hand-written kernels.

An operator is opaque to the compiler, knows its own derivative, and calls the implementation of its tensors' device:
Triton on CUDA, C++ on the CPU. Shapes and meaning as in `reference`; all arithmetic is fp32, whatever the storage type.
What is kept for the backward pass: `heads` its outputs, which attention keeps anyway, and the narrow u; `swiglu` its
input, as an ungated one does; `modulate` and `add_norm` the product. No gate and no logit is ever stored.
"""

# ruff: noqa: ARG001 - what stands in for an operator, or prepares its derivative, is called with all its arguments

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

IMPLEMENTATIONS: dict[str, Callable[[], Any]] = {
    "cpu": lambda: importlib.import_module("comt_cli.kernels.cpu"),
    "cuda": lambda: importlib.import_module("comt_cli.kernels.triton"),
}
"""Device type -> what gives the module with the eight functions."""


def _on(tensor: Tensor) -> Any:
    return IMPLEMENTATIONS[tensor.device.type]()


_GATES = "Tensor? Wc, Tensor? ws"
_HOW = "float scale, int rank, bool[] gated"


class _Operator(Protocol):
    def __call__(self, *arguments: Any) -> Any: ...

    def register_fake(self, function: Callable[..., Any]) -> Callable[..., Any]: ...

    def register_autograd(self, backward: Callable[..., Any], *, setup_context: Callable[..., None]) -> None: ...


def _operator(name: str, arguments: str, results: str) -> Callable[[Callable[..., Any]], _Operator]:
    return torch.library.custom_op(f"comt::{name}", mutates_args=(), schema=f"({arguments}) -> {results}")


def _empty_gradients(product: Tensor, Wc: Tensor | None, ws: Tensor | None) -> tuple[Tensor, Tensor]:
    """What dWc and ds look like: fp32, and of no elements where there is no such matrix."""
    dWc, dws = (product.new_empty((0,) if W is None else W.shape, dtype=torch.float32) for W in (Wc, ws))
    return dWc, dws


def _rows(gradient: Tensor) -> Tensor:
    """A gradient with its rows in one piece each: that of a sum has all its elements in one place."""
    return gradient if gradient.stride(-1) == 1 else gradient.contiguous()


def _gradient(found: Tensor, of: Tensor | None) -> Tensor | None:
    return None if of is None else found.to(of.dtype)


# ---- modulate: every site's columns times its gate


@_operator("modulate", f"Tensor product, {_GATES}, {_HOW}, int[] widths", "Tensor")
def _modulate(product: Tensor, Wc: Any, ws: Any, scale: float, rank: int, gated: Any, widths: Any) -> Tensor:
    result: Tensor = _on(product).modulate(product, Wc, ws, scale, rank, gated, widths)
    return result


@_modulate.register_fake
def _(product: Tensor, Wc: Any, ws: Any, scale: float, rank: int, gated: Any, widths: Any) -> Tensor:
    return product.new_empty(product.shape[0], sum(widths))


@_operator(
    "modulate_backward",
    f"Tensor G, Tensor z, Tensor u, {_GATES}, {_HOW}, int[] widths, int columns, bool z_is_output",
    "(Tensor, Tensor, Tensor)",
)
def modulate_backward(
    G: Tensor, z: Tensor, u: Tensor, Wc: Any, ws: Any, scale: float, rank: int, gated: Any, widths: Any, *more: Any
) -> Any:
    """The gradients of the product, of Wc and of ws. The last arguments: the product's columns; whether `z` is the
    output zhat instead."""
    return _on(z).modulate_backward(_rows(G), z, u, Wc, ws, scale, rank, gated, widths, *more)


@modulate_backward.register_fake
def _(
    G: Tensor, z: Tensor, u: Tensor, Wc: Any, ws: Any, scale: float, rank: int, gated: Any, widths: Any, *more: Any
) -> Any:
    return z.new_empty(z.shape[0], more[0]), *_empty_gradients(z, Wc, ws)


def _modulate_keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    product, Wc, ws, *ctx.how = inputs
    ctx.save_for_backward(product, Wc, ws)


def _modulate_gradients(ctx: Any, G: Tensor) -> Any:
    product, Wc, ws = ctx.saved_tensors
    scale, rank, gated, widths = ctx.how
    width = sum(widths)
    z, u = product[:, :width], product[:, width : width + sum(gated) * rank]
    found, dWc, dws = modulate_backward(G, z, u, Wc, ws, scale, rank, gated, widths, product.shape[1], False)
    return found, _gradient(dWc, Wc), _gradient(dws, ws), None, None, None, None


_modulate.register_autograd(_modulate_gradients, setup_context=_modulate_keep)


def modulate(
    product_TC: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    scale: float,
    rank: int,
    gated: Sequence[bool],
    widths: Sequence[int],
) -> Tensor:
    """Every site's columns times its gate, side by side: [T, M] (`reference.modulate`)."""
    result: Tensor = _modulate(product_TC, Wc, ws, scale, rank, list(gated), list(widths))
    return result


# ---- heads: gates and rotary positions


_ROTATION = "Tensor cos, Tensor sin"


@_operator(
    "heads",
    f"Tensor product, {_GATES}, {_ROTATION}, {_HOW}, int heads, int kv_heads",
    "(Tensor, Tensor, Tensor, Tensor)",
)
def _heads(product: Tensor, *arguments: Any) -> Any:
    return _on(product).heads(product, *arguments)


@_heads.register_fake
def _(
    product: Tensor,
    Wc: Any,
    ws: Any,
    cos: Tensor,
    sin: Tensor,
    scale: float,
    rank: int,
    gated: Any,
    heads: int,
    kv_heads: int,
) -> Any:
    head_width, rows = 2 * cos.shape[1], product.shape[0]
    widths = (heads * head_width, kv_heads * head_width, kv_heads * head_width, sum(gated) * rank)
    return tuple(product.new_empty(rows, width) for width in widths)


@_operator(
    "heads_backward",
    f"Tensor dq, Tensor dk, Tensor dv, Tensor q, Tensor k, Tensor v, Tensor u, {_GATES}, {_ROTATION}, {_HOW}, "
    "int heads, int kv_heads, int columns",
    "(Tensor, Tensor, Tensor)",
)
def _heads_backward(dq: Tensor, *arguments: Any) -> Any:
    return _on(dq).heads_backward(dq, *arguments)


@_heads_backward.register_fake
def _(dq: Tensor, dk: Any, dv: Any, q: Tensor, k: Any, v: Any, u: Any, Wc: Any, ws: Any, *more: Any) -> Any:
    return q.new_empty(q.shape[0], more[-1]), *_empty_gradients(q, Wc, ws)


def _heads_keep(ctx: Any, inputs: Any, output: Any) -> None:
    product, Wc, ws, cos, sin, *how = inputs
    ctx.how = (*how, product.shape[1])
    ctx.save_for_backward(*output, Wc, ws, cos, sin)


def _heads_gradients(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor, _: Tensor) -> Any:
    q, k, v, u, Wc, ws, cos, sin = ctx.saved_tensors
    found, dWc, dws = _heads_backward(_rows(dq), _rows(dk), _rows(dv), q, k, v, u, Wc, ws, cos, sin, *ctx.how)
    return found, _gradient(dWc, Wc), _gradient(dws, ws), *[None] * 7


_heads.register_autograd(_heads_gradients, setup_context=_heads_keep)


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys, gated and rotated, and gated values, [T, heads * E] each (`reference.heads`)."""
    q, k, v, _ = _heads(product_TC, Wc, ws, cos_PE, sin_PE, scale, rank, list(gated), heads, kv_heads)
    return q, k, v


# ---- swiglu


@_operator("swiglu", f"Tensor product, {_GATES}, {_HOW}, int width, int padded", "Tensor")
def _swiglu(product: Tensor, *arguments: Any) -> Tensor:
    result: Tensor = _on(product).swiglu(product, *arguments)
    return result


@_swiglu.register_fake
def _(product: Tensor, *arguments: Any) -> Tensor:
    return product.new_empty(product.shape[0], arguments[-1])


@_operator("swiglu_backward", f"Tensor dh, Tensor product, {_GATES}, {_HOW}, int width", "(Tensor, Tensor, Tensor)")
def _swiglu_backward(dh: Tensor, product: Tensor, *arguments: Any) -> Any:
    return _on(product).swiglu_backward(dh, product, *arguments)


@_swiglu_backward.register_fake
def _(dh: Tensor, product: Tensor, Wc: Any, ws: Any, *more: Any) -> Any:
    return torch.empty_like(product, memory_format=torch.contiguous_format), *_empty_gradients(product, Wc, ws)


def _swiglu_keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    product, Wc, ws, *ctx.how, _padded = inputs
    ctx.save_for_backward(product, Wc, ws)


def _swiglu_gradients(ctx: Any, dh: Tensor) -> Any:
    product, Wc, ws = ctx.saved_tensors
    found, dWc, dws = _swiglu_backward(_rows(dh), product, Wc, ws, *ctx.how)
    return found, _gradient(dWc, Wc), _gradient(dws, ws), *[None] * 5


_swiglu.register_autograd(_swiglu_gradients, setup_context=_swiglu_keep)


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
    """silu(gate) * up of the two gated sites, with zeros behind: [T, padded] (`reference.swiglu`)."""
    result: Tensor = _swiglu(product_TC, Wc, ws, scale, rank, list(gated), width, padded)
    return result


# ---- add_norm: the residual addition and the norm behind it


@_operator(
    "add_norm", f"Tensor x, Tensor product, {_GATES}, Tensor gain, {_HOW}, float epsilon", "(Tensor, Tensor, Tensor)"
)
def _add_norm(x: Tensor, product: Tensor, *arguments: Any) -> Any:
    return _on(product).add_norm(x, product, *arguments)


@_add_norm.register_fake
def _(x: Tensor, product: Tensor, *arguments: Any) -> Any:
    return x.new_empty(x.shape), product.new_empty(x.shape), x.new_empty(x.shape[0], dtype=torch.float32)


@_operator(
    "add_norm_backward",
    f"Tensor dy, Tensor dn, Tensor y, Tensor rstd, Tensor product, {_GATES}, Tensor gain, {_HOW}",
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _add_norm_backward(dy: Tensor, *arguments: Any) -> Any:
    return _on(dy).add_norm_backward(dy, *arguments)


@_add_norm_backward.register_fake
def _(
    dy: Tensor, dn: Tensor, y: Tensor, rstd: Tensor, product: Tensor, Wc: Any, ws: Any, gain: Tensor, *more: Any
) -> Any:
    dproduct = torch.empty_like(product, memory_format=torch.contiguous_format)
    return (
        y.new_empty(y.shape),
        dproduct,
        *_empty_gradients(product, Wc, ws),
        gain.new_empty(gain.shape, dtype=torch.float32),
    )


def _add_norm_keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, product, Wc, ws, gain, *ctx.how, _epsilon = inputs
    y, _n, rstd = output
    gated = ctx.how[-1]
    if not any(gated) and product.shape == x.shape:
        product = None  # only its shape and type would be asked for
    ctx.save_for_backward(y, rstd, product, Wc, ws, gain)


def _add_norm_gradients(ctx: Any, dy: Tensor, dn: Tensor, _: Tensor) -> Any:
    y, rstd, product, Wc, ws, gain = ctx.saved_tensors
    dy, dn = _rows(dy), _rows(dn)
    product = dn if product is None else product
    dx, found, dWc, dws, dgain = _add_norm_backward(dy, dn, y, rstd, product, Wc, ws, gain, *ctx.how)
    return dx, found, _gradient(dWc, Wc), _gradient(dws, ws), _gradient(dgain, gain), *[None] * 4


_add_norm.register_autograd(_add_norm_gradients, setup_context=_add_norm_keep)


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
) -> tuple[Tensor, Tensor]:
    """The stream x plus one gated site, and its RMSNorm, [T, D] each (`reference.add_norm`)."""
    y, n, _ = _add_norm(x_TD, product_TC, Wc, ws, gain_D, scale, rank, list(gated), epsilon)
    return y, n
