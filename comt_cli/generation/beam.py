"""Batched beam search as in tensor2tensor: live beams, and finished hypotheses.

A step continues the K live beams of a sentence by every token and takes the 2 K likeliest continuations. Those that end
join the finished hypotheses, of which the K with the best normalised score are kept; the K likeliest of the others stay
live. A sentence is done when no beam could enter its `n_best`, even at the largest penalty. Equal probabilities are
ordered by beam and token id, so that a sentence depends on its batch only through rounding.

Shapes: B sentences, K beams, R = B K rows (row b K + k is beam k of sentence b), S source tokens, V vocabulary, C
candidates, L longest hypothesis, T target tokens, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from comt_cli.data.tokenizer import PAD, SpecialTokens
from comt_cli.errors import UserError
from comt_cli.models.transformer import EncoderDecoder
from comt_cli.tasks.settings.translation import BeamSettings

PENALTIES: dict[str, Callable[[float, float], float]] = {
    "gnmt": lambda length, alpha: ((5 + length) / 6) ** alpha,
    "average": lambda length, alpha: length**alpha,
}
"""Length penalties, which divide log-probabilities: tensor2tensor's (Wu et al. 2016, Eq. 14) and fairseq's."""


class NotFinite(UserError):
    """The outputs of a network are not finite numbers."""


@dataclass(frozen=True)
class Hypothesis:
    """Target tokens without begin and end token; the sum of their log-probabilities with that of the end; and `score`,
    that sum over the length penalty, which counts the end as a token. A hypothesis that has not `ended` reached the
    maximum length, and ranks after all that have."""

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    ended: bool = True


@dataclass(frozen=True)
class Decoded:
    """The text decoded for a line or an image; `hypothesis` is None for an empty line."""

    text: str
    hypothesis: Hypothesis | None = None


@dataclass(frozen=True)
class Forbidden:
    """Constraints on sequences: none of `tokens`, no end among the first `least` tokens, no `PAD`, no begin token."""

    tokens: tuple[int, ...] = ()
    least: int = 0

    def at(self, place: int, begin: int, end: int) -> list[int]:
        """The tokens that are forbidden at a position, counted from 0."""
        return [PAD, begin, *self.tokens, *([end] if place < self.least else [])]


NOTHING = Forbidden()


@torch.no_grad()
def decode(
    model: EncoderDecoder,
    *source: Tensor,
    settings: BeamSettings,
    special: SpecialTokens,
    max_lengths: Sequence[int],
    n_best: int = 1,
    forbidden: Forbidden = NOTHING,
) -> list[list[Hypothesis]]:
    """For each sentence of `source` up to `n_best` different hypotheses, the best first.

    A hypothesis has at most as many tokens as its sentence's entry of `max_lengths`, the end included. `forbidden`
    tokens, `PAD` and the begin token are never chosen, and the others' probabilities do not change. Raises `NotFinite`.
    """
    device, B, K, alpha = source[0].device, len(source[0]), settings.beam, settings.alpha
    begin, end, L = special.need("begin"), special.end, max(max_lengths)
    limit_B = torch.tensor(max_lengths, device=device)
    penalty_L = torch.tensor([PENALTIES[settings.penalty](max(n, 1), alpha) for n in range(L + 1)], device=device)
    memory, cache = model.encode(*source), model.decoding_cache(B * K, L)
    number_B = torch.arange(B, device=device)
    sums_BK = torch.full((B, K), -torch.inf, device=device)
    finished = _Beams(torch.full((B, K, L), end, device=device), sums_BK, sums_BK)
    live = finished._replace(sums=sums_BK.clone())
    live.sums[:, 0] = 0  # the other beams start as copies, which would all find the same continuations
    last_R1 = torch.full((B * K, 1), begin, device=device)
    found: list[list[Hypothesis]] = [[] for _ in range(B)]
    for length in count(1):
        logits_RV = model.step(last_R1, cache, memory).float()
        candidates, parent_BC = _candidates(live, logits_RV, forbidden.at(length - 1, begin, end), length)
        is_end_BC = candidates.tokens[:, :, length - 1] == end
        ended = candidates.only(is_end_BC, penalty_L[length])
        finished = _Beams(*(torch.cat(pair, 1) for pair in zip(finished, ended, strict=True))).best(K)[0]
        live, chosen_BK = candidates.only(~is_end_BC, penalty_L[length]).best(K)
        best_B = live.sums[:, 0]
        # The best score a live beam can still reach. It must be strictly lower: an equal score might rank first.
        is_safe_B = finished.scores[:, n_best - 1] > best_B / penalty_L[limit_B]
        done_B = is_safe_B | (length >= limit_B) | (best_B == -torch.inf)
        is_broken = (live.sums.isnan() | finished.sums.isnan()).any()
        *is_done, broken = torch.cat([done_B, is_broken[None]]).tolist()  # the only synchronisation with the device
        if broken:
            raise NotFinite("the outputs of the network are not finite numbers", "Its training may have diverged.")
        parent_BK, keep_B = parent_BC.gather(1, chosen_BK), (~done_B).nonzero()[:, 0]
        if any(is_done):
            for place in (place for place, done in enumerate(is_done) if done):
                found[int(number_B[place])] = _hypotheses(finished, live, place, length, end, n_best)
            if all(is_done):
                return found
            memory, number_B, limit_B = _sentences(memory, keep_B), number_B[keep_B], limit_B[keep_B]
            live, finished = _sentences(live, keep_B), _sentences(finished, keep_B)
        if K > 1 or any(is_done):
            cache.reorder((keep_B[:, None] * K + parent_BK[keep_B]).flatten())
        last_R1 = live.tokens[:, :, length - 1].reshape(-1, 1)
    raise AssertionError("every sentence ends at its greatest length")


class _Beams(NamedTuple):
    """Beams of each sentence, the best first: `tokens` [B, K, L], padded with the end token; `sums` [B, K] of
    log-probabilities; `scores` [B, K], which order them. Missing beams have -inf."""

    tokens: Tensor
    sums: Tensor
    scores: Tensor

    def only(self, wanted_BK: Tensor, penalty: Tensor) -> _Beams:
        """The wanted beams with new scores; the others keep their position, with -inf."""
        sums = self.sums.masked_fill(~wanted_BK, -torch.inf)
        return _Beams(self.tokens, sums, sums / penalty)

    def best(self, K: int) -> tuple[_Beams, Tensor]:
        """The K beams with the best scores (the first of equals), and their indices, int64 [B, K]."""
        index_BK = self.scores.sort(descending=True, stable=True).indices[:, :K]
        return self.at(index_BK), index_BK

    def at(self, place_BK: Tensor) -> _Beams:
        tokens_BKL = self.tokens.gather(1, place_BK[..., None].expand(-1, -1, self.tokens.shape[-1]))
        return _Beams(tokens_BKL, self.sums.gather(1, place_BK), self.scores.gather(1, place_BK))


def _candidates(live: _Beams, logits_RV: Tensor, forbidden: list[int], length: int) -> tuple[_Beams, Tensor]:
    """The 2 K likeliest continuations of each sentence's beams, scored by their sums, and the beams that they continue,
    int64 [B, 2 K]. At most K of them end, since each beam can end in one way. A single beam has one continuation: with
    a second, the search would not be greedy."""
    B, K = live.sums.shape
    V = logits_RV.shape[1]
    sums_RV = logits_RV.log_softmax(-1) + live.sums.reshape(-1, 1)
    sums_RV[:, forbidden] = -torch.inf
    sums_BC, index_BC = top(sums_RV.view(B, K * V), 2 * K if K > 1 else 1)
    parent_BC = index_BC // V
    candidates = live.at(parent_BC)
    candidates.tokens[:, :, length - 1] = index_BC % V
    return _Beams(candidates.tokens, sums_BC, sums_BC), parent_BC


def top(values_BN: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
    """The `wanted` largest values of each row in falling order, and their indices; among equal values the lowest
    indices, which `torch.topk` does not guarantee."""
    values_BC, index_BC = values_BN.topk(min(wanted + 1, values_BN.shape[1]))
    if wanted < values_BC.shape[1] and (values_BC[:, wanted - 1] == values_BC[:, wanted]).any():
        values_BN, index_BN = values_BN.sort(descending=True, stable=True)
        return values_BN[:, :wanted], index_BN[:, :wanted]
    index_BC = index_BC[:, :wanted].sort().values
    values_BC, place_BC = values_BN.gather(1, index_BC).sort(descending=True, stable=True)
    return values_BC, index_BC.gather(1, place_BC)


def _sentences(memory: Any, index_B: Tensor) -> Any:
    if isinstance(memory, Tensor):
        return memory.index_select(0, index_B)
    parts = [_sentences(part, index_B) for part in memory]
    return type(memory)(*parts) if hasattr(memory, "_fields") else type(memory)(parts)


def _hypotheses(finished: _Beams, live: _Beams, place: int, length: int, end: int, n_best: int) -> list[Hypothesis]:
    found = []
    for beams, ended in ((finished, True), (live, False)):
        rows = zip(*(part[place].tolist() for part in beams), strict=True)
        there = [row for row in rows if row[1] != -torch.inf]
        for tokens, total, score in sorted(there, key=lambda row: (-row[2], row[0])):
            kept = tokens[: tokens.index(end)] if ended else tokens[:length]
            found.append(Hypothesis(tuple(kept), total, score, ended))
    return found[:n_best]
