"""Sequences drawn from a decoder's own distribution, several a source, and the greedy one beside them.

Nothing of a sequence enters another's draw, and its random numbers are given: what is drawn does not depend on the
batch, but through the rounding of the logits.

Shapes: B sources, K drawn sequences a source, R = B (K + 1) or B K rows, L longest sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from comt_cli.data.special_tokens import PAD
from comt_cli.generation.beam import NOTHING, Decodes, Forbidden
from comt_cli.generation.sampling import nucleus


@torch.no_grad()
def drawn_sequences(
    model: Decodes,
    *source: Tensor,
    uniform_BKL: Tensor,
    begin: int,
    end: int,
    greedy: bool = False,
    forbidden: Forbidden = NOTHING,
) -> Tensor:
    """`K` sequences for each source, int64 [B, K, l], each closed by the end token unless it has all L tokens, and
    padded with `PAD`; l is the longest. Token t of sequence k is what `uniform_BKL[b, k, t]`, in [0, 1), picks from the
    distribution. With `greedy` the likeliest tokens are one more sequence, the first.

    What is `forbidden` is never drawn, and neither is `PAD` or `begin`; their probability goes to the others in
    proportion.
    """
    device, B, L = source[0].device, len(source[0]), uniform_BKL.shape[-1]
    memory = model.encode(*source)
    uniform_BKL = torch.cat([uniform_BKL.new_zeros(B, int(greedy), L), uniform_BKL], dim=1).to(device)
    K = uniform_BKL.shape[1]
    is_greedy_R = torch.arange(B * K, device=device) % K < int(greedy)
    cache = model.decoding_cache(B * K, L)
    last_R = torch.full((B * K,), begin, device=device)
    has_ended_R = torch.zeros(B * K, dtype=torch.bool, device=device)
    found_RL = torch.full((B * K, L), PAD, device=device)
    for t in range(L):
        logits_RV = model.step(last_R[:, None], cache, memory).float()
        logits_RV[:, forbidden.at(t, begin, end)] = -torch.inf
        drawn_R = nucleus(logits_RV, uniform_BKL[:, :, t].reshape(-1), temperature=1.0, top_p=1.0)
        last_R = torch.where(is_greedy_R, logits_RV.argmax(-1), drawn_R)
        found_RL[:, t] = last_R.masked_fill(has_ended_R, PAD)
        has_ended_R |= last_R == end
        if has_ended_R.all():
            break
    return found_RL[:, : t + 1].view(B, K, -1)
