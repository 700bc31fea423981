"""The functions of the implementations, computed by autograd on the definitions: what kernels are tested with, and what
stands in for them where the subject is something else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from comt_cli.kernels import operators
from comt_cli.kernels.add_norm import reference as add_norm
from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.heads import reference as rotated_heads
from comt_cli.kernels.heads import rotate
from comt_cli.kernels.modulate import reference as modulate
from comt_cli.kernels.swiglu import reference as swiglu


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the operators of gated products computed here."""
    monkeypatch.setattr(operators, "implementation", lambda *_: sys.modules[__name__])


def heads(product, *arguments):
    # What is not gated would be a part of the product, which an operator must not hand out.
    return tuple(part.clone() for part in rotated_heads(product, *arguments))


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


def modulate_backward(G, product, modulation, widths):
    Wc, ws, *how = modulation
    return tuple(differentiated(lambda p, c, s: modulate(p, Modulation(c, s, *how), widths), [product, Wc, ws], [G]))


def heads_backward(dq, dk, dv, q, k, v, u, modulation, cos, sin, query_heads, kv_heads, columns):
    zhat = torch.cat([rotate(q, cos, -sin), rotate(k, cos, -sin), v], 1)
    G = torch.cat([rotate(dq, cos, -sin), rotate(dk, cos, -sin), dv], 1)
    widths = [q.shape[1], k.shape[1], v.shape[1]]
    factor = modulate(torch.cat([torch.ones_like(zhat), u], 1), modulation, widths)  # what modulating ones gives
    rest = zhat.new_zeros(len(zhat), columns - zhat.shape[1] - u.shape[1])
    return modulate_backward(G, torch.cat([zhat / factor, u, rest], 1), modulation, widths)


def swiglu_backward(dh, product, modulation, width):
    (Wc, ws, *how), padded = modulation, dh.shape[1]
    return tuple(
        differentiated(lambda p, c, s: swiglu(p, Modulation(c, s, *how), width, padded), [product, Wc, ws], [dh])
    )


def add_norm_backward(dy, dn, y, rstd, product, modulation, gain):
    Wc, ws, *how = modulation
    shared, product = product is None, torch.zeros_like(y) if product is None else product
    epsilon = float((rstd.double() ** -2 - y.double().square().mean(-1)).mean()) if len(y) else 0.0
    x = y - modulate(product, modulation, [y.shape[1]]).to(y.dtype)

    def function(x, product, Wc, ws, gain):
        return add_norm(x, product, Modulation(Wc, ws, *how), gain, epsilon)

    dx, dproduct, *others = differentiated(function, [x, product, Wc, ws, gain], [dy, dn])
    return dx, dproduct.new_empty(0) if shared else dproduct, *others
