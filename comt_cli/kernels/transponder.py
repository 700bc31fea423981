"""Transponder's channel and scalar gates with their closed-form backward pass.

Autograd on the definition (`gates.transponder_gate`) keeps five [T, N] tensors a projection and runs two dozen
passes over them. One product of activations, h = G * zhat, is all that the gradients need, and z, u and the channel
gate all that must be kept.

Shapes: T tokens (any leading dimensions), N output width, r bottleneck width; G = dL/dzhat.
    p = sigmoid(u)   gc = 2 sigmoid(ac p Bc^T) [T, N]   gs = 2 sigmoid(as p bs^T) [T, 1]   zhat = z gc gs
    Wc = ac Bc       ws = as bs        h = G zhat             dz = G gc gs
    ec = h (1 - gc/2)                  es = rowsum(h) (1 - gs/2)
    dWc = ec^T p     dws = es^T p      dp = ec Wc + es ws     du = dp p (1 - p)
Wc and ws are formed in the parameters' own type, by autograd: an alpha that was rounded to bf16 first would stand still
while it moves from 1 to 1.003.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor


def modulate(z_TN: Tensor, u_Tr: Tensor, Bc_Nr: Tensor, ac: Tensor, bs_1r: Tensor, as_: Tensor) -> Tensor:
    """Return z * 2 sigmoid(ac sigmoid(u) Bc^T) * 2 sigmoid(as sigmoid(u) bs^T), [T, N], in the type of `z_TN`."""
    arguments = [z_TN, *(tensor.to(z_TN.dtype) for tensor in (u_Tr, ac * Bc_Nr, as_ * bs_1r))]
    zhat: Tensor = _Modulate.apply(*arguments)  # type: ignore[no-untyped-call]
    return zhat


def no_autocast(z: Tensor) -> contextlib.AbstractContextManager[object]:
    """What keeps the types of products as they are given, on the device of `z`."""
    # Models are counted on the meta device, which knows no autocast.
    return contextlib.nullcontext() if z.device.type == "meta" else torch.autocast(z.device.type, enabled=False)


def multiplied_in(x: Tensor) -> torch.dtype:
    """The type of products of `x`: autocast's, or its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if device != "meta" and torch.is_autocast_enabled(device) else x.dtype


class _Modulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, u: Tensor, Wc: Tensor, ws: Tensor) -> Tensor:
        with no_autocast(z):
            p = torch.sigmoid(u)
            half_gc = torch.sigmoid(p @ Wc.T)
            half_gs = torch.sigmoid(p @ ws.T)
            ctx.save_for_backward(z, u, Wc, ws, half_gc, half_gs)
            return z * half_gc * (4 * half_gs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        (G,) = gradients
        z, u, Wc, ws, half_gc, half_gs = ctx.saved_tensors
        with no_autocast(z):
            p = torch.sigmoid(u)
            dz = G * half_gc * (4 * half_gs)
            h = dz * z
            ec = h * (1 - half_gc)
            es = h.sum(-1, keepdim=True) * (1 - half_gs)
            p_rT = p.flatten(0, -2).T
            dWc = (p_rT @ ec.flatten(0, -2)).T  # (p^T e)^T: twice as fast as e^T p where p is this narrow
            dws = (p_rT @ es.flatten(0, -2)).T
            du = (ec @ Wc + es * ws) * p * (1 - p)
            return dz, du, dWc, dws
