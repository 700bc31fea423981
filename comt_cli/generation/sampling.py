"""Sampling: the next token of a text, and sequences from a decoder's distribution.

Shapes: B rows (texts) or sources, V vocabulary, N steps, K sequences per source, R rows of all sequences, L longest
sequence.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from comt_cli.data.tokenizer import PAD
from comt_cli.generation.beam import NOTHING, Forbidden
from comt_cli.models.transformer import EncoderDecoder

COLDEST = 1e-6
"""The lowest temperature; lower ones are raised to it. The most likely token is then certain, except for ties."""
NOT_FINITE = -1
"""The token of a row whose logits are not finite."""


def uniform_numbers(prompts: Sequence[Sequence[int]], steps: int, seed: int, copies: Sequence[int]) -> Tensor:
    """Random numbers in [0, 1), fp32 [B, N] on the CPU. Every text has its own stream, seeded by `seed`, its prompt,
    and its number among copies of the prompt (`copies`, from 0)."""
    uniform = []
    for prompt, copy in zip(prompts, copies, strict=True):
        digest = hashlib.sha256(repr((seed, copy, list(prompt))).encode()).digest()
        stream = torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
        uniform.append(torch.rand(steps, generator=stream))
    return torch.stack(uniform)


def draw(logits_BV: Tensor, uniform_B: Tensor, temperature: float, top_p: float) -> Tensor:
    """The token of each row, int64 [B]: the most likely one at `temperature` 0, else one drawn by `nucleus`;
    `NOT_FINITE` in rows with logits that are not finite."""
    token_B = logits_BV.argmax(-1) if temperature == 0 else nucleus(logits_BV, uniform_B, temperature, top_p)
    return token_B.where(logits_BV.isfinite().all(-1), NOT_FINITE)


def nucleus(logits_BV: Tensor, uniform_B: Tensor, temperature: float, top_p: float) -> Tensor:
    """The token that a number in [0, 1) picks from the smallest set whose probability reaches `top_p`, int64 [B].

    The set is filled from the most likely token on, which it always has (Holtzman et al. 2020). In fp32.
    """
    scaled_BV = logits_BV.float()
    scaled_BV = (scaled_BV - scaled_BV.amax(-1, keepdim=True)) / max(temperature, COLDEST)
    p_BV, token_BV = scaled_BV.softmax(-1).sort(dim=-1, descending=True, stable=True)
    reached_BV = p_BV.cumsum(-1)
    # The tokens that do not reach it, and one more; a rounded sum may never reach 1.
    count_B1 = (reached_BV < top_p).sum(-1, keepdim=True).add(1).clamp(max=p_BV.shape[-1])
    mass_B1 = reached_BV.gather(-1, count_B1 - 1)
    place_B1 = torch.searchsorted(reached_BV, uniform_B[:, None].float() * mass_B1, right=True)
    # Rounding may lift uniform * mass to mass itself, one position too far. A parallel cumulative sum may also rise at
    # a token of probability 0, which must not be chosen.
    last_B1 = (p_BV > 0).sum(-1, keepdim=True).sub(1).clamp(min=0).minimum(count_B1 - 1)
    return token_BV.gather(-1, place_B1.minimum(last_B1))[:, 0]


@torch.no_grad()
def drawn_sequences(
    model: EncoderDecoder,
    *source: Tensor,
    uniform_BKL: Tensor,
    begin: int,
    end: int,
    greedy: bool = False,
    forbidden: Forbidden = NOTHING,
) -> Tensor:
    """Sample `K` sequences for each source, int64 [B, K, l], each with an end token unless it has all L tokens, and
    padded with `PAD`; l is the longest. `uniform_BKL[b, k, t]`, in [0, 1), selects token t of sequence k. With
    `greedy`, the greedy sequence is added as the first. `forbidden` tokens, `PAD` and `begin` are never drawn; their
    probability is redistributed to the others in proportion."""
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


def count_copies(prompts: Sequence[Sequence[int]]) -> list[int]:
    """For each prompt the number of equal prompts before it."""
    seen: Counter[tuple[int, ...]] = Counter()
    copies = []
    for prompt in map(tuple, prompts):
        copies.append(seen[prompt])
        seen[prompt] += 1
    return copies
