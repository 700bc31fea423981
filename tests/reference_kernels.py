"""The eight functions of an implementation, computed by autograd on the definition: what kernels are tested with, and
what stands in for them where the subject is something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from comt_cli.kernels import reference
from comt_cli.kernels.reference import add_norm, modulate, swiglu

__all__ = [
    "add_norm",
    "add_norm_backward",
    "heads",
    "heads_backward",
    "modulate",
    "modulate_backward",
    "swiglu",
    "swiglu_backward",
]


def heads(product, *arguments):
    # What is not gated would be a part of the product, which an operator must not hand out.
    return tuple(part.clone() for part in reference.heads(product, *arguments))


def differentiated(
    function: Callable[..., Any], tensors: Sequence[Tensor | None], outgoing: Sequence[Tensor]
) -> list[Tensor]:
    """The gradients of those of `tensors` that are there, else empty tensors, for these gradients of the outputs."""
    assert all(gradient.stride(-1) == 1 for gradient in outgoing), "kernels take rows in one piece"
    # In another thread, because within an operator this one does not record what is computed.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_differentiated, function, tensors, outgoing).result()


def _differentiated(function, tensors, outgoing):
    with torch.enable_grad():
        leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors]
        outputs = function(*leaves)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs[: len(outgoing)]
    wanted = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(outputs, wanted, list(outgoing), materialize_grads=True))
    return [torch.empty(0) if leaf is None else next(found) for leaf in leaves]


def modulate_backward(G, z, u, Wc, ws, scale, rank, gated, widths, columns, z_is_output):
    if z_is_output:  # z = zhat / gamma, where gamma is what modulating ones gives
        ones = torch.cat([torch.ones_like(z), u], 1)
        z = z / reference.modulate(ones, Wc, ws, scale, rank, gated, widths)
    product = torch.cat([z, u, z.new_zeros(len(z), columns - z.shape[1] - u.shape[1])], 1)
    return tuple(differentiated(lambda p, c, s: modulate(p, c, s, scale, rank, gated, widths), [product, Wc, ws], [G]))


def heads_backward(dq, dk, dv, q, k, v, u, Wc, ws, cos, sin, scale, rank, gated, query_heads, kv_heads, columns):
    zhat = torch.cat([reference.rotate(q, cos, -sin), reference.rotate(k, cos, -sin), v], 1)
    G = torch.cat([reference.rotate(dq, cos, -sin), reference.rotate(dk, cos, -sin), dv], 1)
    widths = [q.shape[1], k.shape[1], v.shape[1]]
    return modulate_backward(G, zhat, u, Wc, ws, scale, rank, gated, widths, columns, True)


def swiglu_backward(dh, product, Wc, ws, scale, rank, gated, width):
    padded = dh.shape[1]
    return tuple(
        differentiated(lambda p, c, s: swiglu(p, c, s, scale, rank, gated, width, padded), [product, Wc, ws], [dh])
    )


def add_norm_backward(dy, dn, y, rstd, product, Wc, ws, gain, scale, rank, gated):
    width = y.shape[1]
    epsilon = float((rstd.double() ** -2 - y.double().square().mean(-1)).mean()) if len(y) else 0.0
    x = y - modulate(product, Wc, ws, scale, rank, gated, [width]).to(y.dtype)

    def function(x, product, Wc, ws, gain):
        return add_norm(x, product, Wc, ws, gain, scale, rank, gated, epsilon)

    return tuple(differentiated(function, [x, product, Wc, ws, gain], [dy, dn]))
