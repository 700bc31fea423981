"""The gate as the papers define it, in plain PyTorch. Everything faster must agree with this file.

Shapes: T tokens (any leading dimensions), D input width, N output width, r bottleneck width.

    u = x A^T                       A: r x D         (the only thing a gate reads from its input)
    z = phi(u) B^T                  B: N x r (channel) or 1 x r (scalar), phi = sigmoid
    gamma = sigmoid(z)              CoMT, Eq. 4
    gamma = 2 sigmoid(alpha z)      Transponder, Eq. 5, alpha > 0
"""

from __future__ import annotations

import torch
from torch import Tensor


def comt_gate(u_Tr: Tensor, B_Nr: Tensor) -> Tensor:
    """CoMT's modulator after its first layer: `sigmoid(B sigmoid(u))`, in (0, 1). Shape [T, N], N = 1 for a scalar."""
    return torch.sigmoid(torch.sigmoid(u_Tr) @ B_Nr.T)


def transponder_gate(u_Tr: Tensor, B_Nr: Tensor, alpha: Tensor) -> Tensor:
    """Transponder's modulator after its first layer: `2 sigmoid(alpha B sigmoid(u))`, in (0, 2). Shape [T, N]."""
    return 2 * torch.sigmoid(alpha * (torch.sigmoid(u_Tr) @ B_Nr.T))
