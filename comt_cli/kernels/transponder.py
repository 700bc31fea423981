"""Transponder's channel and scalar gates with their closed-form backward pass.

Autograd on the definition (`reference.transponder_gate`) keeps five [T, N] tensors a projection and runs two dozen
passes over them. One product of activations, h = G * zhat, is all that the gradients need, and z, u and the channel
gate all that must be kept.

Shapes: T tokens (any leading dimensions), N output width, r bottleneck width; G = dL/dzhat.
    p = sigmoid(u)   gc = 2 sigmoid(ac p Bc^T) [T, N]   gs = 2 sigmoid(as p bs^T) [T, 1]   zhat = z gc gs
    h = G zhat       dz = G gc gs
    ec = ac h (1 - gc/2)               es = as rowsum(h) (1 - gs/2)
    dBc = ec^T p     dbs = es^T p      dp = ec Bc + es bs     du = dp p (1 - p)
    dac = <Bc, dBc> / ac               das = <bs, dbs> / as
The last line holds because the logit is linear in B: sum_t e_t l_t = sum_nk B_nk (e^T p)_nk.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor


def modulate(z_TN: Tensor, u_Tr: Tensor, Bc_Nr: Tensor, ac: Tensor, bs_1r: Tensor, as_: Tensor) -> Tensor:
    """Return z * 2 sigmoid(ac sigmoid(u) Bc^T) * 2 sigmoid(as sigmoid(u) bs^T), [T, N], in the type of `z_TN`."""
    dtype = z_TN.dtype
    arguments = [z_TN, *(tensor.to(dtype) for tensor in (u_Tr, Bc_Nr, ac, bs_1r, as_))]
    zhat: Tensor = _Modulate.apply(*arguments)  # type: ignore[no-untyped-call]
    return zhat


def _no_autocast(z: Tensor) -> contextlib.AbstractContextManager[object]:
    # Models are counted on the meta device, which knows no autocast.
    return contextlib.nullcontext() if z.device.type == "meta" else torch.autocast(z.device.type, enabled=False)


class _Modulate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, u: Tensor, Bc: Tensor, ac: Tensor, bs: Tensor, as_: Tensor) -> Tensor:
        with _no_autocast(z):
            p = torch.sigmoid(u)
            half_gc = torch.sigmoid(p @ (ac * Bc).T)
            half_gs = torch.sigmoid(p @ (as_ * bs).T)
            ctx.save_for_backward(z, u, Bc, ac, bs, as_, half_gc, half_gs)
            return z * half_gc * (4 * half_gs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        (G,) = gradients
        z, u, Bc, ac, bs, as_, half_gc, half_gs = ctx.saved_tensors
        with _no_autocast(z):
            p = torch.sigmoid(u)
            dz = G * half_gc * (4 * half_gs)
            h = dz * z
            ec = h * (1 - half_gc) * ac
            es = h.sum(-1, keepdim=True) * (1 - half_gs) * as_
            p_rT = p.flatten(0, -2).T
            dBc = (p_rT @ ec.flatten(0, -2)).T  # (p^T e)^T: twice as fast as e^T p where p is this narrow
            dbs = (p_rT @ es.flatten(0, -2)).T
            du = (ec @ Bc + es * bs) * p * (1 - p)
            return dz, du, dBc, (Bc * dBc).sum() / ac, dbs, (bs * dbs).sum() / as_
