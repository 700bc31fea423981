"""One linear map and its gate as a single differentiable operator: `gamma(x) * (x W^T + b)`.

On CUDA the gate is applied to the tile of the matrix product while that is in registers (`triton.projection`). On the
CPU x goes through one product with [W; A], and the gate's kernel follows. Where neither can run (float64, no compiler,
another device) it is `reference`.

Shapes: T tokens (any leading dimensions), D input width, N output width, R bottleneck columns; G = dL/dzhat.
    u = x A^T   p = sigmoid(u)   zhat = (x W^T + b) * gc gs   gc = c sigmoid(p Wc^T)   gs = c sigmoid(p ws^T)
    h = G zhat                   dz = G gc gs                 du, dWc, dws from h as in `ops.modulate_backward`
    dx = [dz | du] [W; A]        [dW; dA] = [dz | du]^T x     db = sum_t dz
Kept for the backward pass: x, u and zhat, besides the parameters. Neither z, nor a gate, nor a logit.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from comt_cli.kernels import choice, ops, reference


def gated_projection(
    x_TD: Tensor,
    weight_ND: Tensor,
    A_RD: Tensor,
    Wc_NR: Tensor | None,
    ws_1R: Tensor | None,
    bias_N: Tensor | None = None,
    scale: float = 2.0,
) -> Tensor:
    """[T, D] -> zhat, [T, N], in the type that `F.linear` would give, autocast included; `scale` is the c above.

    `Wc` and `ws`, at least one of them, may be of another type than x. Raises ValueError if both are missing.
    """
    if Wc_NR is None and ws_1R is None:
        raise ValueError("a gated projection needs Wc, ws or both")
    device = x_TD.device.type
    if torch.is_autocast_enabled(device) and x_TD.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
        x_TD, weight_ND, A_RD = x_TD.to(dtype), weight_ND.to(dtype), A_RD.to(dtype)
        bias_N = bias_N.to(dtype) if bias_N is not None else None
    N, R = len(weight_ND), len(A_RD)
    if not _has_kernel(device, x_TD.dtype, N, R):
        product = F.linear(x_TD, torch.cat([weight_ND, A_RD]), _beside_zeros(bias_N, R, x_TD.dtype))
        return reference.modulate(product, Wc_NR, ws_1R, scale, R, [True], [N])
    zhat_TN: Tensor
    zhat_TN, _ = _gated_projection(x_TD.reshape(-1, x_TD.shape[-1]), weight_ND, A_RD, Wc_NR, ws_1R, bias_N, scale)
    return zhat_TN.view(*x_TD.shape[:-1], N)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_kernel(device: str, dtype: torch.dtype, width: int, rank: int) -> bool:
    gates = choice.Gates(channel=True, scalar=True, rank=rank)
    return choice.choose("modulate", "fused", torch.device(device), dtype, width, gates, compiled=False).fused


def _beside_zeros(bias_N: Tensor | None, columns: int, dtype: torch.dtype) -> Tensor | None:
    """The bias of z, with none of u beside it."""
    return None if bias_N is None else F.pad(bias_N.to(dtype), (0, columns))


def _by_rows(tensor: Tensor) -> Tensor:
    """The tensor, its rows without gaps between their elements; derivatives of sums, for one, come expanded."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@torch.library.custom_op(
    "comt::gated_projection",
    mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor A, Tensor? Wc, Tensor? ws, Tensor? bias, float scale) -> (Tensor, Tensor)",
)
def _gated_projection(
    x: Tensor, weight: Tensor, A: Tensor, Wc: Tensor | None, ws: Tensor | None, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    implementation = ops.IMPLEMENTATIONS[x.device.type]()
    x, weight, A = _by_rows(x), _by_rows(weight), _by_rows(A)
    Wc, ws, bias = (None if each is None else each.contiguous() for each in (Wc, ws, bias))
    with torch.autocast(x.device.type, enabled=False):
        if implementation.__name__ == "comt_cli.kernels.triton":
            from comt_cli.kernels.triton.projection import projection

            zhat, u = projection(x, weight, A, Wc, ws, bias, scale)
        else:
            product = F.linear(x, torch.cat([weight, A]), _beside_zeros(bias, len(A), x.dtype))
            zhat = implementation.modulate(product, Wc, ws, scale, len(A), [True], [len(weight)])
            u = product[:, len(weight) :].clone(memory_format=torch.contiguous_format)
    return zhat, u


@_gated_projection.register_fake
def _(x: Tensor, weight: Tensor, A: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], weight.shape[0]), x.new_empty(x.shape[0], A.shape[0])


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, A, Wc, ws, bias, ctx.scale = inputs
    ctx.bias_type = None if bias is None else bias.dtype
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, A, Wc, ws, *output)


def _gradients(ctx: Any, G: Tensor | None, Gu: Tensor | None) -> Any:
    """Gradients of the inputs, from those of zhat and of u; None for what nobody used."""
    x, weight, A, Wc, ws, zhat, u = ctx.saved_tensors
    needs_x, needs_weight, needs_A = ctx.needs_input_grad[:3]
    N, R = len(weight), len(A)
    with torch.autocast(x.device.type, enabled=False):
        G = torch.zeros_like(zhat) if G is None else _by_rows(G)
        dproduct, dWc, dws = ops.modulate_backward(G, zhat, u, Wc, ws, ctx.scale, R, [True], [N], N + R, True)
        if Gu is not None:
            dproduct = torch.cat([dproduct[:, :N], dproduct[:, N:] + Gu], 1)
        dx = dproduct @ torch.cat([weight, A]) if needs_x else None
        dweight, dA = (dproduct.T @ x).split([N, R]) if needs_weight or needs_A else (None, None)
        dbias = None if ctx.bias_type is None else dproduct[:, :N].sum(0, dtype=torch.float32).to(ctx.bias_type)
    return (
        dx,
        dweight,
        dA,
        None if Wc is None else dWc.to(Wc.dtype),
        None if ws is None else dws.to(ws.dtype),
        dbias,
        None,
    )


_gated_projection.register_autograd(_gradients, setup_context=_keep)
