"""How long a translator takes to translate: beam search with and without its cache, beside another library's.

A row is one variant at one number of sentences and one width of the beam. No hypothesis may end before `TOKENS`, so
that all variants take as many steps, whatever their random weights would say. `peak` is the most memory that a search
takes beyond the weights.
Shapes: B sentences, S source tokens, T tokens so far, R rows of hypotheses, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from comt_cli.data.special_tokens import PAD
from comt_cli.errors import UserError
from comt_cli.generation.beam import Decodes, beam_search
from comt_cli.lab.bench.decode import News, over_batches
from comt_cli.lab.bench.ending import failed
from comt_cli.lab.bench.memory import mebibytes, peak_of
from comt_cli.lab.bench.origin import origin_on
from comt_cli.lab.bench.peers import BEGIN, END, Marian
from comt_cli.lab.bench.rounds import GoOn, Turns, always, compared, unsettled
from comt_cli.lab.bench.shapes import Shape
from comt_cli.lab.bench.subjects import BEAM, TRANSLATION, translation_goals
from comt_cli.layers.multi_head import KeysValues, sinusoids
from comt_cli.layers.residual.base import State
from comt_cli.models.build import materialise, model_of
from comt_cli.models.transformer import DecoderBlock, Memory, Transformer

TOKENS = 32
"""Tokens of every source and of every translation."""
BEAMS = {"plain": (1, BEAM, 8), "marian": (1, BEAM, 8)}
"""The widths at which a variant is measured; others at the usual one."""

Search = Callable[[Tensor, int, int], list[list[int]]]
"""(sources [B, S], beam, tokens) -> each sentence's best translation."""


def run_translation_benchmark(
    shapes: Sequence[Shape],
    variants: Sequence[str],
    dtypes: Sequence[str],
    batches: Sequence[int],
    device: torch.device,
    rounds: int,
    go_on: GoOn = always,
) -> News:
    """As `run_decode_benchmark`, of translators: a batch is so many sentences of `TOKENS` tokens."""
    yield from over_batches(shapes, variants, dtypes, batches, Turns(device, rounds, go_on), _searches, _measure)


def _searches(
    shape: Shape, variants: Sequence[str], dtype: torch.dtype, device: torch.device, found: dict[str, Search]
) -> Iterator[str]:
    """Fill `found` with the searches of the variants; yields what cannot be had."""
    models: dict[str, Transformer] = {}
    for name in variants:
        base, _, how = name.partition("-")
        if TRANSLATION.is_peer(base):
            try:
                marian = Marian(shape)
            except UserError as error:
                yield f"{shape.size} {name}: left out, {error.message}"
                continue
            found[name] = partial(_theirs, marian.to(device, dtype).eval())
            continue
        if base not in models:
            model = model_of(shape.spec(TRANSLATION.networks[base].method))
            assert isinstance(model, Transformer)
            materialise(model, device, seed=0)
            models[base] = model.to(dtype).eval()
        found[name] = partial(_ours, Uncached(models[base]) if how == "uncached" else models[base])


def _ours(model: Decodes, source_BS: Tensor, beam: int, tokens: int) -> list[list[int]]:
    limits = [tokens] * len(source_BS)
    found = beam_search(NeverEnding(model), source_BS, width=beam, max_lengths=limits, begin=BEGIN, end=END)
    return [[*best.tokens] for best, *_ in found]


@torch.no_grad()
def _theirs(model: Marian, source_BS: Tensor, beam: int, tokens: int) -> list[list[int]]:
    found: Tensor = model.library.generate(
        input_ids=source_BS,
        attention_mask=(source_BS != PAD).long(),
        num_beams=beam,
        do_sample=False,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
    )
    return found[:, 1:].tolist()  # the first is the begin token


def _measure(shape: Shape, dtype: str, batch: int, found: dict[str, Search], turns: Turns) -> News:
    device, vocabulary, tokens = turns.device, shape.dimensions["vocabulary"], TOKENS
    generator = torch.Generator().manual_seed(0)
    source_BS = torch.randint(BEGIN + 1, vocabulary, (batch, tokens), generator=generator).to(device)
    what = f"{shape.size} {dtype} batch {batch}"
    parts: dict[tuple[int, str], Callable[[], list[list[int]]]] = {}
    peaks: dict[tuple[int, str], int] = {}
    wanted = [(width, name) for name in found for width in BEAMS.get(name, (BEAM,))]
    for beam, name in wanted:
        if not turns.go_on():
            yield f"{what}: left out for want of time"
            return
        part = partial(found[name], source_BS, beam, tokens)
        try:
            peaks[beam, name] = peak_of(part, device)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            yield failed(f"{what} beam {beam} {name}", error)
            continue
        parts[beam, name] = part
    if not parts:
        return
    uncached, cached = (parts.get((BEAM, name)) for name in ("plain-uncached", "plain"))
    if uncached and cached and (differ := sum(map(list.__ne__, uncached(), cached()))):
        yield f"{what}: {differ} of {batch} translations differ without the cache: equal but for rounding"
    times, origin = turns.of(parts), origin_on(device)
    if (still := unsettled(times)) is not None:
        yield f"{what}: {still}"
    rows = []
    for beam, name in sorted(parts):
        taken, one = times[beam, name], peaks.get((1, name))
        row = {
            **{"device": origin.device, "size": shape.size, "shape": f"{shape.network}-v{vocabulary}"},
            **{"dtype": dtype, "batch": batch, "beam": beam, "variant": name, "rounds": len(taken.seconds)},
            "tokens": tokens,
            **taken.columns("search_ms", 3),
            "sentences_per_second": round(batch / taken.undisturbed, 2),
            **compared("ratio_to_plain", times, (beam, name), (beam, "plain")),
            "peak_mib": mebibytes(peaks[beam, name]),
            "peak_ratio_to_beam_1": round(peaks[beam, name] / one, 4) if one else None,
        }
        rows.append(row | translation_goals(row) | origin.versions())
    yield rows


# ---- what searches


class NeverEnding:
    """A decoder whose hypotheses never end: they all reach the greatest length."""

    def __init__(self, model: Decodes) -> None:
        self.encode, self.decoding_cache, self._step = model.encode, model.decoding_cache, model.step

    def step(self, tokens_R1: Tensor, cache: Any, memory: Any) -> Tensor:
        """As the model's."""
        logits_RV = self._step(tokens_R1, cache, memory)
        logits_RV[:, END] = -torch.inf
        return logits_RV


class Prefixes:
    """The tokens of every row so far, [R, T]: what is kept where no keys and values are."""

    def __init__(self, tokens_RT: Tensor) -> None:
        self.tokens_RT = tokens_RT

    def reorder(self, rows: Tensor) -> None:
        """As a cache's."""
        self.tokens_RT = self.tokens_RT[rows]


class Uncached:
    """A translator that keeps keys and values of its sources alone: every step reads all tokens so far again."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.encode = model, model.encode

    def decoding_cache(self, rows: int, capacity: int) -> Prefixes:
        """No tokens yet."""
        return Prefixes(torch.empty(rows, 0, dtype=torch.long, device=self.model.head_weight.device))

    @torch.no_grad()
    def step(self, tokens_R1: Tensor, cache: Prefixes, memory: Memory) -> Tensor:
        """As the model's."""
        model, mask_B11S = self.model, memory.mask_BS[:, None, None, :]
        cache.tokens_RT = torch.cat([cache.tokens_RT, tokens_R1], dim=1)
        positions_TD = sinusoids(cache.tokens_RT.shape[1], model.shape.width, model.head_weight)
        state = State(model.embedded(cache.tokens_RT, positions_TD))
        for block, keys, values in zip(model.decoder, memory.keys, memory.values, strict=True):
            assert isinstance(block, DecoderBlock)
            state = block.decoded(state, KeysValues(keys, values, mask_B11S))
        return model.outputs(state.normalised(model.decoder_norm)[1][:, -1])
