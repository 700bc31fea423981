"""The gates as the papers define them, and what a block does with them, in plain PyTorch. Everything faster must agree.

Shapes: T tokens (any leading dimensions), D input width, N output width of a site, r bottleneck width.

    u = x A^T                       A: r x D         (the only thing a gate reads from its input)
    z = phi(u) B^T                  B: N x r (channel) or 1 x r (scalar), phi = sigmoid
    gamma = sigmoid(z)              CoMT, Eq. 4
    gamma = 2 sigmoid(alpha z)      Transponder, Eq. 5, alpha > 0
    gamma = 2 sigmoid(alpha b1 b2)  Transponder without context (section 4.6), the same for every token
    gamma = sigmoid(x W^T)          full rank (Qiu et al. 2025), W: N x D

The second half defines the operations that have faster forms. They work on the product of one input with the matrices
of its sites and of their gates, [T, C], C >= M + S R: the columns of every site (M in all), then the u of each of the S
gated sites, R columns each, then whatever is not their business. A gate with a bottleneck is there

    gamma = c sigmoid(sigmoid(u) Wc^T) * c sigmoid(sigmoid(u) ws^T)

with c = 1 (CoMT) or 2 (Transponder), Wc = alpha B: N x R and ws = alpha b: 1 x R, either of which may be absent. `Wc`
holds the rows of all gated sites under each other, `ws` one row for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def comt_gate(u_Tr: Tensor, B_Nr: Tensor) -> Tensor:
    """CoMT's modulator after its first layer: `sigmoid(B sigmoid(u))`, in (0, 1). Shape [T, N], N = 1 for a scalar."""
    return torch.sigmoid(torch.sigmoid(u_Tr) @ B_Nr.T)


def transponder_gate(u_Tr: Tensor, B_Nr: Tensor, alpha: Tensor) -> Tensor:
    """Transponder's modulator after its first layer: `2 sigmoid(alpha B sigmoid(u))`, in (0, 2). Shape [T, N]."""
    return 2 * torch.sigmoid(alpha * (torch.sigmoid(u_Tr) @ B_Nr.T))


def static_gate(beta1: Tensor, beta2_N: Tensor, alpha: Tensor) -> Tensor:
    """Transponder's gate without context: `2 sigmoid(alpha beta1 beta2)`, in (0, 2). Shape [N]."""
    return 2 * torch.sigmoid(alpha * (beta1 * beta2_N))


def full_rank_gate(u_TN: Tensor) -> Tensor:
    """The gate of a full matrix, after the product with it: `sigmoid(u)`, in (0, 1). Shape [T, N]."""
    return torch.sigmoid(u_TN)


# ---- what a block does with gated products


def modulate(
    product_TC: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    scale: float,
    rank: int,
    gated: Sequence[bool],
    widths: Sequence[int],
) -> Tensor:
    """Every site's columns times its gate, side by side: [T, M]."""
    return torch.cat(sites(product_TC, Wc, ws, scale, rank, gated, widths), dim=-1)


def sites(
    product_TC: Tensor,
    Wc: Tensor | None,
    ws: Tensor | None,
    scale: float,
    rank: int,
    gated: Sequence[bool],
    widths: Sequence[int],
) -> list[Tensor]:
    """Every site's columns times its gate, [T, N] each."""
    count, width = sum(gated), sum(widths)
    z = torch.split(product_TC[..., :width], list(widths), dim=-1)
    u = iter(torch.split(product_TC[..., width : width + count * rank], rank, dim=-1) if count else ())
    channel = iter(torch.split(Wc, [n for n, has in zip(widths, gated, strict=True) if has]) if Wc is not None else ())
    scalar = iter(torch.split(ws, 1) if ws is not None else ())
    result = []
    for z_TN, has in zip(z, gated, strict=True):
        if not has:
            result.append(z_TN)
            continue
        p_TR, gated_TN = torch.sigmoid(next(u)), z_TN
        if Wc is not None:
            gated_TN = gated_TN * (scale * torch.sigmoid(p_TR @ next(channel).to(p_TR.dtype).T))
        if ws is not None:
            gated_TN = gated_TN * (scale * torch.sigmoid(p_TR @ next(scalar).to(p_TR.dtype).T))
        result.append(gated_TN)
    return result


def rotate(x_TN: Tensor, cos_PE: Tensor, sin_PE: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021) of rows of heads side by side: channels i and i + E/2 of every head.

    Row t turns by the angles in row t % P of the tables, [P, E/2] each.
    """
    half = cos_PE.shape[-1]
    rows = torch.arange(len(x_TN), device=x_TN.device) % len(cos_PE)
    cos_T1E, sin_T1E = cos_PE[rows].unsqueeze(1), sin_PE[rows].unsqueeze(1)
    first, second = x_TN.view(len(x_TN), x_TN.shape[1] // (2 * half), 2, half).unbind(2)
    turned = torch.stack([first * cos_T1E - second * sin_T1E, second * cos_T1E + first * sin_T1E], 2)
    return turned.reshape(x_TN.shape)


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
    head_width = 2 * cos_PE.shape[-1]
    widths = [heads * head_width, kv_heads * head_width, kv_heads * head_width]
    q, k, v = sites(product_TC, Wc, ws, scale, rank, gated, widths)
    u = product_TC[:, sum(widths) : sum(widths) + sum(gated) * rank].clone()
    return rotate(q, cos_PE, sin_PE), rotate(k, cos_PE, sin_PE), v, u


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
    gate_TF, up_TF = sites(product_TC, Wc, ws, scale, rank, gated, [width, width])
    return F.pad(F.silu(gate_TF) * up_TF, (0, padded - width))


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
    (zhat_TD,) = sites(product_TC, Wc, ws, scale, rank, gated, [x_TD.shape[-1]])
    y_TD = (x_TD + zhat_TD).to(x_TD.dtype)
    wide_TD = y_TD.to(torch.promote_types(y_TD.dtype, torch.float32))
    rstd_T = torch.rsqrt(wide_TD.square().mean(-1) + epsilon)
    return y_TD, (wide_TD * rstd_T.unsqueeze(-1) * gain_D).to(product_TC.dtype), rstd_T
