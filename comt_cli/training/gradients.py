"""The gradients of all processes together, whether each holds them whole or its part: their norm, and clipping."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from comt_cli.training.parallel import held, is_cut
from comt_cli.training.world import World


def complete(gradients: Sequence[Tensor], world: World) -> None:
    """Average over processes what FSDP did not: gradients of single numbers, which every process keeps whole.

    Beside no cut gradient nothing is to do: DistributedDataParallel has averaged all.
    """
    if not any(is_cut(gradient) for gradient in gradients):
        return
    whole = [gradient for gradient in gradients if not is_cut(gradient)]
    if whole:
        means = world.sum(torch.stack(whole)) / world.size
        for gradient, mean in zip(whole, means, strict=True):
            gradient.copy_(mean)


def norm(gradients: Sequence[Tensor], world: World) -> Tensor:
    """The Euclidean norm of all gradients as one vector, the same in all processes."""
    cut = [held(gradient) for gradient in gradients if is_cut(gradient)]
    whole = [gradient for gradient in gradients if not is_cut(gradient)]
    if not cut:
        return torch.nn.utils.get_total_norm(whole)
    # In fp64: a norm that fp32 holds has a square that it may not.
    squares = world.sum(torch.nn.utils.get_total_norm(cut).double().square())
    if whole:
        squares = squares + torch.nn.utils.get_total_norm(whole).double().square()
    return squares.sqrt().float()


def each_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of every gradient, none of which is cut: one vector, on the device."""
    return torch.stack(list(torch._foreach_norm(list(gradients))))


def clip(gradients: Sequence[Tensor], total: Tensor, limit: float) -> None:
    """Scale the gradients, whose norm is `total`, so that it is `limit` at most (as `clip_grad_norm_` does)."""
    factor = (limit / (total + 1e-6)).clamp(max=1)
    torch._foreach_mul_([held(gradient) for gradient in gradients], factor)
