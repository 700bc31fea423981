"""Language-model head and loss together, a few rows at a time: the logits of a whole batch are never stored.

A block of rows goes through product, softmax and gradient while it is in the cache. The gradient is computed in the
forward pass. The loss is a scalar, so the backward pass only multiplies by the incoming derivative.

Shapes: T tokens, D width, V vocabulary.

    z = h W^T + b,  loss = sum_t [logsumexp(z_t) - z_t[target]],  dz = softmax(z) - onehot(target)
    dh = dz W,  dW = dz^T h,  db = sum_t dz_t

b is the bias of heads that have one (BERT's).

With label smoothing e (Szegedy et al. 2016) the target distribution is (1 - e) onehot(target) + e / V, including e / V
for the target itself: the convention of `torch.nn.functional.cross_entropy`.

    loss = sum_t [(1 - e) (-log p_t[target]) + e mean_v(-log p_t[v])],  dz = softmax(z) - (1 - e) onehot(target) - e / V

Tensor2Tensor and fairseq spread e over the V - 1 other tokens, which is e V / (V - 1) here.

On a CPU, softmax, loss and gradient of a block are one C++ call. On CUDA, liger-kernel (extra `gpu`) does the same in
Triton if it is installed. Its steps repeat bit for bit. They cannot be captured in a CUDA graph, since they wait for
the device, and the backward pass runs only once, since it scales saved tensors in place.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor

from comt_cli.data.split import IGNORE
from comt_cli.kernels.choice import choose_loss, liger
from comt_cli.kernels.operators import implementation
from comt_cli.recipe.settings import Kernels as Wanted

BLOCK_ELEMENTS = {"cpu": 512 * 1024, "cuda": 64 * 1024 * 1024}
"""Logits in one block: enough to fit a CPU's cache, and to occupy a GPU."""
FUSED_BLOCK_ELEMENTS = 4 * 1024 * 1024  # C++ reads a block once, so products with many rows gain more
LIGER_BLOCK_ELEMENTS = 256 * 1024 * 1024
"""The same for liger-kernel, 0.5 GiB in 16 bits, or up to twice that: it rounds rows up to a power of two. Its default
blocks have as many logits as h has elements, and each reads and writes all of dW."""
BY_LIGER = "cuda"  # device type with liger-kernel's fused loss


def linear_cross_entropy(
    h_TD: Tensor, W_VD: Tensor, targets_T: Tensor, wanted: Wanted = "auto", smoothing: float = 0.0,
    bias_V: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Sum over targets other than `IGNORE` of -log softmax(h W^T + b)[target], in nats, fp32. With `smoothing` in [0,
    1) it is the cross entropy against the smoothed targets. Products have the type of `h_TD`, softmax and sums fp32
    (all fp64 if `h_TD` is). `wanted` as in `choice.choose_loss`."""
    if not torch.is_grad_enabled():  # unknown inside the function
        h_TD, W_VD = h_TD.detach(), W_VD.detach()
        bias_V = None if bias_V is None else bias_V.detach()
    W_VD = W_VD.to(h_TD.dtype)
    bias_V = None if bias_V is None else bias_V.to(h_TD.dtype)
    fused = choose_loss(wanted, h_TD.device, h_TD.dtype).fused
    # liger-kernel cannot compute a gradient for W alone, and divides by the number of rows.
    by_liger = fused and h_TD.device.type == BY_LIGER and len(h_TD) and h_TD.requires_grad >= W_VD.requires_grad
    given = h_TD, W_VD, targets_T, smoothing, bias_V
    loss: Tensor = _of_liger(*given) if by_liger else _LinearCrossEntropy.apply(*given, fused and h_TD.is_cpu)  # type: ignore[no-untyped-call]
    return loss


def _of_liger(h_TD: Tensor, W_VD: Tensor, targets_T: Tensor, smoothing: float, bias_V: Tensor | None) -> Tensor:
    found = liger()
    assert isinstance(found, tuple)  # it was chosen
    function = found[1]
    named: dict[str, Any] = {"bias": bias_V, "ignore_index": IGNORE, "label_smoothing": smoothing, "reduction": "sum"}
    named["accum_dtype"] = torch.float32  # of dW's sum over blocks: bf16 would lose small late terms
    signature = _signature(function.forward)
    if "chunk_mem_const" in signature.parameters:  # 0.8.5 has it, 0.8.2 has not: size of a block relative to h
        named["chunk_mem_const"] = max(1, LIGER_BLOCK_ELEMENTS // h_TD.numel())
    bound = signature.bind(None, h_TD, W_VD, targets_T, **named)
    bound.apply_defaults()
    _context, *arguments = bound.args  # `apply` takes only positional arguments
    with torch.autocast(h_TD.device.type, enabled=False):
        loss: Tensor = function.apply(*arguments)[0]  # type: ignore[no-untyped-call]
    return loss


_signature = functools.cache(inspect.signature)


def _cross_entropy(
    z_TV: Tensor, targets_T: Tensor, smoothing: float, bias_V: Tensor | None, db_V: Tensor | None, *, gradient: bool
) -> tuple[Tensor, Tensor]:
    """Losses of rows of logits z + b, [T], and with `gradient` dz in the type of z; db is added to `db_V`."""
    wide = torch.promote_types(z_TV.dtype, torch.float32)
    counted = (targets_T != IGNORE).unsqueeze(1)
    index = targets_T.clamp(min=0).unsqueeze(1)
    z = z_TV.to(wide)
    if bias_V is not None:
        z += bias_V
    z_target = z.gather(1, index)
    z_max = z.amax(1, keepdim=True)
    z.sub_(z_max)
    if smoothing:  # (1 - e) z[target] + e mean(z)
        z_target = torch.lerp(z_target, z.mean(1, keepdim=True) + z_max, smoothing)
    exp = z.exp_()
    total = exp.sum(1, keepdim=True)
    losses = (total.log() + z_max - z_target) * counted
    if not gradient:
        return losses, exp
    on_target = -counted.to(wide)
    dz = exp.mul_(counted / total)
    if smoothing:
        dz.add_(on_target, alpha=smoothing / z_TV.shape[1])
        on_target = on_target * (1 - smoothing)
    dz = dz.scatter_add_(1, index, on_target)
    if db_V is not None:
        db_V += dz.sum(0)
    return losses, dz.to(z_TV.dtype)


def _fused_cross_entropy(
    z_TV: Tensor, targets_T: Tensor, smoothing: float, bias_V: Tensor | None, db_V: Tensor | None, *, gradient: bool
) -> tuple[Tensor, Tensor]:
    """The same in C++, in place of z (fp32 or bf16). Raises `IndexError` for a target outside the vocabulary."""
    T, V = z_TV.shape
    targets_T = targets_T.contiguous()
    wrong_T = targets_T[(targets_T >= V) | ((targets_T < 0) & (targets_T != IGNORE))]
    if len(wrong_T):
        raise IndexError(f"the target {int(wrong_T[0])} is outside the vocabulary of {V} words")
    losses_T = torch.empty(T)
    run = implementation("linear_cross_entropy", "cpu").run
    run("cross_entropy", z_TV, targets_T, bias_V, db_V, float(smoothing), gradient, losses_T)
    return losses_T, z_TV


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_TD: Tensor, W_VD: Tensor, targets_T: Tensor, smoothing: float, bias_V: Tensor | None, fused: bool
    ) -> Tensor:
        needs_gradient = any(ctx.needs_input_grad)
        elements = FUSED_BLOCK_ELEMENTS if fused else BLOCK_ELEMENTS.get(h_TD.device.type, BLOCK_ELEMENTS["cuda"])
        rows = max(torch.get_num_threads() if fused else 1, elements // len(W_VD))  # C++ uses a thread per row
        wide = torch.promote_types(h_TD.dtype, torch.float32)
        loss = torch.zeros((), dtype=wide, device=h_TD.device)
        dh_TD = torch.empty_like(h_TD) if needs_gradient else None
        # Sums over blocks are fp32: bf16 would lose small late terms.
        dW_VD = torch.zeros_like(W_VD, dtype=wide) if needs_gradient else None
        db_V = torch.zeros_like(bias_V, dtype=wide) if needs_gradient and bias_V is not None else None
        of_logits = _fused_cross_entropy if fused else _cross_entropy
        wide_bias_V = None if bias_V is None else bias_V.to(wide)
        with torch.autocast(h_TD.device.type, enabled=False):
            for start in range(0, len(h_TD), rows):
                h, targets = h_TD[start : start + rows], targets_T[start : start + rows]
                losses, dz = of_logits(h @ W_VD.T, targets, smoothing, wide_bias_V, db_V, gradient=needs_gradient)
                loss += losses.sum()
                if dh_TD is None or dW_VD is None:
                    continue
                torch.mm(dz, W_VD, out=dh_TD[start : start + rows])
                if dW_VD.dtype == dz.dtype:
                    dW_VD.addmm_(dz.T, h)
                else:
                    dW_VD += dz.T @ h
        if dh_TD is not None and dW_VD is not None:
            db = None if bias_V is None or db_V is None else db_V.to(bias_V.dtype)
            ctx.save_for_backward(dh_TD, dW_VD.to(W_VD.dtype), db)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, Tensor | None, None]:
        (gradient,) = gradients
        dh_TD, dW_VD, db_V = ctx.saved_tensors
        db = None if db_V is None else db_V * gradient.to(db_V.dtype)
        return dh_TD * gradient.to(dh_TD.dtype), dW_VD * gradient.to(dW_VD.dtype), None, None, db, None
