"""Cross entropy of a block of logits, and its gradient in their place, in C++."""

from __future__ import annotations

import torch
from torch import Tensor

from comt_cli.data.split import IGNORE
from comt_cli.kernels.cpu.calls import run


def cross_entropy(
    z_TV: Tensor, targets_T: Tensor, smoothing: float, bias_V: Tensor | None, db_V: Tensor | None, *, gradient: bool
) -> Tensor:
    """The loss of each row of logits z + b, [T], in nats, fp32; 0 where the target is `IGNORE`.

    With `gradient` z, fp32 or bf16, is overwritten by the gradient of their sum, and b's is added to `db_V`, fp32.

    Raises:
        TypeError, ValueError: a type or shape that it does not take (`run`).
        IndexError: a target that is no word.
    """
    T, V = z_TV.shape
    targets_T = targets_T.contiguous()
    wrong_T = targets_T[(targets_T >= V) | ((targets_T < 0) & (targets_T != IGNORE))]
    if len(wrong_T):
        raise IndexError(f"the target {int(wrong_T[0])} is none of {V} words")
    losses_T = torch.empty(T)
    run("cross_entropy", z_TV, targets_T, bias_V, db_V, float(smoothing), gradient, losses_T)
    return losses_T
