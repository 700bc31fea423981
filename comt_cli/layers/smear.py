"""Smear: part of the previous token's embedding in each token's (modded-nanogpt 2025; nanochat, Karpathy 2026).

Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.layers.learned import NO_DECAY, Constant, NarrowGate, factors


class Smear(nn.Module):
    """e_t + l sigmoid(w n_t) e_(t-1), n_t the first `channels` channels of the RMSNorm of e_t, without a gain. l starts
    at 0. The first token has no previous one. Decoding with a cache therefore needs the previous token."""

    def __init__(self, width: int, channels: int = 24, start: float = 0.02) -> None:
        super().__init__()
        self.gate = NarrowGate(width, 1, channels, start)
        self.share = Constant(0.0, update_rule=NO_DECAY)

    def forward(self, e_BTD: Tensor) -> Tensor:
        first_B1D, later_BtD = e_BTD[:, :1], e_BTD[:, 1:]
        (share_1,) = factors(self.share())
        added_BtD = share_1 * self.gate(F.rms_norm(later_BtD, later_BtD.shape[-1:])) * e_BTD[:, :-1]
        return torch.cat([first_B1D, (later_BtD + added_BtD).to(e_BTD.dtype)], 1)
