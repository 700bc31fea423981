"""A decoder that a table drives: the probabilities of the next token follow from the source and all tokens before it,
by looking up random numbers. No batch can change them, and a loop over all sequences can score them.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from comt_cli.data.tokenizer import PAD

END, BEGIN = 1, 2
STATES = 997


class ToyMemory(NamedTuple):
    """What the decoder reads of the sources: as a Transformer's, a tensor for each layer, and a mask."""

    keys: tuple[Tensor, ...]
    mask: Tensor


class ToyCache:
    """A number for each row, which stands for all that it has decoded."""

    def __init__(self, rows: int, capacity: int) -> None:
        self.state_R, self.capacity, self.stored = torch.zeros(rows, dtype=torch.int64), capacity, 0
        self.reordered = 0

    def reorder(self, rows: Tensor) -> None:
        self.state_R = self.state_R[rows]
        self.reordered += 1


class ToyDecoder(nn.Module):
    """`sharpness`: how far apart the logits are; `levels`: how many different logits there are, None for any."""

    def __init__(
        self, vocabulary: int = 6, seed: int = 0, *, sharpness: float = 1.0, levels: int | None = None, end_bias=0.0
    ) -> None:
        super().__init__()
        table = torch.randn(STATES, vocabulary, generator=torch.Generator().manual_seed(seed)) * sharpness
        table = table if levels is None else (table * levels).round() / levels
        table[:, END] += end_bias
        self.table = nn.Parameter(table, requires_grad=False)
        self.steps, self.rows = 0, []

    def encode(self, source_BS: Tensor) -> ToyMemory:
        mask_BS = source_BS != PAD
        place_S = torch.arange(1, source_BS.shape[1] + 1)
        return ToyMemory((((source_BS * mask_BS) * (place_S * 7 + 3)).sum(1) * 31 % STATES,), mask_BS)

    def decoding_cache(self, rows: int, capacity: int) -> ToyCache:
        return ToyCache(rows, capacity)

    def step(self, tokens_R1: Tensor, cache: ToyCache, memory: ToyMemory) -> Tensor:
        (source_B,) = memory.keys
        assert len(tokens_R1) == len(cache.state_R)
        assert cache.stored < cache.capacity
        beams, rest = divmod(len(tokens_R1), len(source_B))
        assert rest == 0
        cache.stored += 1
        self.steps += 1
        self.rows.append(len(tokens_R1))
        cache.state_R = (cache.state_R * 131 + tokens_R1[:, 0] + 1) % STATES
        return self.table[(source_B.repeat_interleave(beams) + cache.state_R) % STATES]

    def forced(self, source: list[int], target: list[int]) -> float:
        """The log-probability of a target's tokens, in a plain loop, in float64."""
        state, total = 0, 0.0
        (start,) = self.encode(torch.tensor([source])).keys
        for before, token in itertools.pairwise([BEGIN, *target]):
            state = (state * 131 + before + 1) % STATES
            logits_V = self.table[(int(start) + state) % STATES].double()
            total += float(logits_V.log_softmax(-1)[token])
        return total
