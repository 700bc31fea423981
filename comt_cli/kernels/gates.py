"""Gates as the papers define them, and in the form used by the operations of this package.

Shapes: T tokens (any leading dimensions), D input width, N output width of a site, r bottleneck width.

    u = x A^T                       A: r x D         (the only thing that a gate reads from its input)
    z = phi(u) B^T                  B: N x r (channel) or 1 x r (scalar), phi = sigmoid
    gamma = sigmoid(z)              CoMT, Eq. 4
    gamma = 2 sigmoid(alpha z)      Transponder, Eq. 5, alpha > 0
    gamma = 2 sigmoid(alpha b1 b2)  Transponder without context (section 4.6), the same for every token
    gamma = sigmoid(x W^T)          full rank (Qiu et al. 2025), W: N x D

An operation gets the product of one input with the matrices of its sites and of their gates, [T, C], C >= M + S R: the
columns of every site (M in all), then the u of each of the S gated sites, R columns each, then columns that it ignores.
In this form a gate with a bottleneck is

    gamma = c sigmoid(sigmoid(u) Wc^T) * c sigmoid(sigmoid(u) ws^T)

with c = 1 (CoMT) or 2 (Transponder), Wc = alpha B: N x R and ws = alpha b: 1 x R. Either factor may be absent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


def comt_gate(u_Tr: Tensor, B_Nr: Tensor) -> Tensor:
    """CoMT's modulator after its first layer: `sigmoid(B sigmoid(u))`, in (0, 1). Shape [T, N], N = 1 for a scalar."""
    return torch.sigmoid(torch.sigmoid(u_Tr) @ B_Nr.T)


def transponder_gate(u_Tr: Tensor, B_Nr: Tensor, alpha: Tensor) -> Tensor:
    """Transponder's modulator after its first layer: `2 sigmoid(alpha B sigmoid(u))`, in (0, 2). Shape [T, N]."""
    return 2 * torch.sigmoid(alpha * (torch.sigmoid(u_Tr) @ B_Nr.T))


def transponder_gated(z_TN: Tensor, u_Tr: Tensor, Bc_Nr: Tensor, ac: Tensor, bs_1r: Tensor, as_: Tensor) -> Tensor:
    """z * 2 sigmoid(ac sigmoid(u) Bc^T) * 2 sigmoid(as sigmoid(u) bs^T), [T, N], in the type of `z_TN`.

    z, u and the gates are saved for the backward pass. With G = dL/dzhat:

        p = sigmoid(u)   gc = 2 sigmoid(ac p Bc^T) [T, N]   gs = 2 sigmoid(as p bs^T) [T, 1]   zhat = z gc gs
        Wc = ac Bc       ws = as bs        h = G zhat             dz = G gc gs
        ec = h (1 - gc/2)                  es = rowsum(h) (1 - gs/2)
        dWc = ec^T p     dws = es^T p      dp = ec Wc + es ws     du = dp p (1 - p)

    Autograd forms Wc and ws in the parameters' own type: an alpha rounded to bf16 first would stay constant while it
    changes from 1 to 1.003.
    """
    arguments = [z_TN, *(tensor.to(z_TN.dtype) for tensor in (u_Tr, ac * Bc_Nr, as_ * bs_1r))]
    zhat: Tensor = _TransponderGated.apply(*arguments)  # type: ignore[no-untyped-call]
    return zhat


def no_autocast(z: Tensor) -> contextlib.AbstractContextManager[object]:
    """Context without autocast on the device of `z`."""
    # Models are counted on the meta device, which has no autocast.
    return contextlib.nullcontext() if z.device.type == "meta" else torch.autocast(z.device.type, enabled=False)


def multiplied_in(x: Tensor) -> torch.dtype:
    """Type of products of `x`: autocast's, or its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if device != "meta" and torch.is_autocast_enabled(device) else x.dtype


class _TransponderGated(torch.autograd.Function):
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


class Bottleneck(NamedTuple):
    """One gate: `scale * sigmoid(p Wc^T) * scale * sigmoid(p ws^T)`, p = sigmoid(u), Wc = exp(log_alpha_c) Bc and ws =
    exp(log_alpha_s) bs. Bc is [N, R], bs [1, R]; None: the factor is absent. A log_alpha of None is 0."""

    Bc: Tensor | None
    bs: Tensor | None
    scale: float
    log_alpha_c: Tensor | None = None
    log_alpha_s: Tensor | None = None

    @property
    def rank(self) -> int:
        matrix = self.Bc if self.Bc is not None else self.bs
        assert matrix is not None
        return matrix.shape[1]


class Modulation(NamedTuple):
    """Gates of all sites of a product. `Wc`, [Mg, R], and `ws`, [S, R], hold copies of the gated sites' matrices,
    stacked by rows: they may be used after the parameters are freed (FSDP)."""

    Wc: Tensor | None
    ws: Tensor | None
    scale: float
    rank: int
    gated: tuple[bool, ...]

    @property
    def columns(self) -> int:
        """Number of columns of the product that the gates read: S R."""
        return sum(self.gated) * self.rank

    def by_columns(self) -> Modulation:
        """The same with Wc stored by columns, as the C++ kernels need it; otherwise each call copies it."""
        return self if self.Wc is None else self._replace(Wc=self.Wc.T.contiguous().T)


def gated_sites(product_TC: Tensor, modulation: Modulation, widths: Sequence[int]) -> list[Tensor]:
    """Columns of every site times its gate, [T, N] each: the first step of all operations."""
    Wc, ws, scale, rank, gated = modulation
    width = sum(widths)
    z = torch.split(product_TC[..., :width], list(widths), dim=-1)
    u_TU = product_TC[..., width : width + modulation.columns]
    u = iter(torch.split(u_TU, rank, dim=-1) if any(gated) else ())
    factors = []
    if Wc is not None:
        factors.append(iter(torch.split(Wc, [n for n, has in zip(widths, gated, strict=True) if has])))
    if ws is not None:
        factors.append(iter(torch.split(ws, 1)))
    result = []
    for z_TN, has in zip(z, gated, strict=True):
        gated_TN = z_TN
        if has:
            p_TR = torch.sigmoid(next(u))
            for rows in factors:
                gated_TN = gated_TN * (scale * torch.sigmoid(p_TR @ next(rows).to(p_TR.dtype).T))
        result.append(gated_TN)
    return result
