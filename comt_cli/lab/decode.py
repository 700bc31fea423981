"""How long a generated token takes, and a translation: decode steps with a key-value cache, the reading of the prompt,
and beam search with and without its cache, beside another library's.

A row of `decode` is one variant at one batch size: `decode_ms` is a step, a token of every text, on CUDA a captured
graph that is replayed; `prefill_ms` the reading of all prompts. Ratios are to `best_plain`, for the reading to the
quicker plain one there. A row of `decode-translation` is one variant at one number of sentences and one width of the
beam; all variants take `TOKENS` steps, whatever their random weights would say. `peak` is the most memory that a search
takes beyond the weights.
Shapes: B texts or sentences, S source tokens, T tokens so far, R rows of hypotheses, V vocabulary.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from comt_cli.data.tokenizer import PAD
from comt_cli.errors import UserError
from comt_cli.generation.beam import Decodes, beam_search
from comt_cli.generation.cached import Decoder, decode_step
from comt_cli.lab.peers import BEGIN, END, Marian
from comt_cli.lab.runner import DTYPES, Built, Case, Row, Unavailable, versions
from comt_cli.lab.step import nondeterministic
from comt_cli.lab.subjects import BEAM, DECODED, LANGUAGE, SUBJECTS, TRANSLATION, Shape, goals_of
from comt_cli.lab.timing import Alive, Part, Times, compared, mebibytes, peak_beyond, quickest
from comt_cli.layers.multi_head import KeysValues, sinusoids
from comt_cli.layers.residual.base import State
from comt_cli.models.build import empty_network, materialise, model_of, wiring_of
from comt_cli.models.kernels import use_kernels
from comt_cli.models.llama import Llama
from comt_cli.models.transformer import DecoderBlock, Memory, Transformer
from comt_cli.tasks.settings.llama import ModelSettings
from comt_cli.training.devices import device_name, prepare_process

PLAIN = ["plain", "plain-fused"]
PROMPT = 512  # tokens of every prompt: what is read, and what a decode step looks back on
STEPS = 8  # decode steps that are timed in a row
MOST_PREFILL_ON_CPU = 8192  # tokens in all; beyond, a CPU would read for minutes, and the reading is not timed
TOKENS = 32  # of every source and of every translation
BEAMS = {"plain": (1, BEAM, 8), "marian": (1, BEAM, 8)}  # widths; others are measured at the usual one


class _DecodingCase(Case):
    """Variants of one shape, type and batch size. `models`, by name, are shared by all batch sizes."""

    def __init__(
        self,
        page: str,
        shape: Shape,
        dtype: str,
        batch: int,
        keys: Sequence[Any],
        device: torch.device,
        models: dict[str, Any],
    ) -> None:
        super().__init__(f"{shape.size} {dtype} batch {batch}", keys, device)
        self.page, self.optional = page, frozenset(keys)
        self.shape, self.dtype, self.batch, self.models = shape, dtype, batch, models
        self.vocabulary = shape.dimensions["vocabulary"]

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """The settings that `comt generate` runs with: on CUDA not those of training."""
        if self.device.type != "cuda":
            prepare_process(self.device)  # keeps freed memory, which makes times steadier
            yield
        else:
            with nondeterministic():
                yield

    def named(self, variant: str, times: Times, **more: Any) -> Row:
        row: Row = {"device": device_name(self.device), "size": self.shape.size}
        row |= {"shape": f"{self.shape.network}-v{self.vocabulary}", "dtype": self.dtype, "batch": self.batch}
        return {**row, **more, "variant": variant, "rounds": len(times.seconds)}

    def random_tokens(self, least: int, length: int) -> Tensor:
        """[B, length]."""
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(least, self.vocabulary, (self.batch, length), generator=generator)
        return tokens.to(self.device)


def decoding_cases(
    page: str,
    sizes: Sequence[str] | None,
    variants: Sequence[str],
    dtypes: Sequence[str] | None,
    batches: Sequence[int] | None,
    device: torch.device,
) -> Iterator[Case]:
    """A case of each size that the page has, type and batch size, those that are usual if None."""
    of = DECODED[page]
    subject, kind = SUBJECTS[of["subject"]], DecodeCase if page == "decode" else SearchCase
    names = [name for name in variants if name in of["variants"]]
    keys = [(beam, name) for name in names for beam in BEAMS.get(name, (BEAM,))] if kind is SearchCase else names
    there = [size for size in sizes or subject.default_sizes(device.type) if size in subject.shapes and keys]
    for size, dtype in itertools.product(there, dtypes or [of["dtype"]]):
        models: dict[str, Any] = {}
        for batch in batches or of["batches"]:
            yield kind(page, subject.shapes[size], dtype, batch, keys, device, models)


# ---- texts


class DecodeCase(_DecodingCase):
    """Decode steps of language models, and the reading of their prompts."""

    def _model(self, name: str) -> Llama:
        if name not in self.models:
            settings = ModelSettings.model_validate(dict(self.shape.model))
            method = dict(LANGUAGE.networks[name.partition("-")[0]])
            model = empty_network(settings, wiring_of(method), **self.shape.dimensions)
            materialise(model, self.device, seed=0)
            self.models[name] = model.to(DTYPES[self.dtype]).eval()
        found: Llama = self.models[name]
        return found

    def builder(self) -> Callable[[str], Built]:
        prompts_BT = self.random_tokens(0, PROMPT)
        tokens_B = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        graph = self.device.type == "cuda"

        def build(name: str) -> Built:
            model = self._model(name)
            if name.endswith("-fused"):
                dtype = DTYPES[self.dtype]
                choices = use_kernels(model, "fused", self.device, dtype, compiled=False, tokens=self.batch)
                if not any(choice.fused for choice in choices.values()):
                    reasons = "; ".join(choice.reason for choice in choices.values())
                    raise Unavailable(f"nothing is fused here ({reasons})")
            decoder = Decoder(model, self.batch, PROMPT + STEPS, graph=graph)

            @torch.no_grad()
            def prefill() -> None:
                decoder.cache.begin([PROMPT] * self.batch)
                decode_step(decoder.model, decoder.cache, prompts_BT)  # any number of tokens are one step

            def decode() -> None:
                decoder.cache.rewind(PROMPT)
                for _ in range(STEPS):
                    decoder.step(tokens_B)

            parts: dict[str, Part] = {"prefill": prefill, "decode": decode}
            if not graph and self.batch * PROMPT > MOST_PREFILL_ON_CPU:
                del parts["prefill"]
            for part in parts.values():
                part()
            return Built(parts)

        return build

    def rows(self, ready: Mapping[str, Built], times: Mapping[tuple[str, str], Times]) -> list[Row]:
        decode, prefill = (
            {name: times[part, name] for name in ready if (part, name) in times} for part in ("decode", "prefill")
        )
        best, best_prefill = quickest(decode, PLAIN), quickest(prefill, PLAIN)
        rows = []
        for name in ready:
            step = dataclasses.replace(decode[name], seconds=tuple(second / STEPS for second in decode[name].seconds))
            row = self.named(name, step) | {"prompt": PROMPT, **step.columns("decode_ms")}
            row |= {"tokens_per_second": round(self.batch / step.undisturbed, 1), "best_plain": best}
            row |= compared("decode_ratio_to_plain", decode, name, best)
            row |= dict.fromkeys(("prefill_ms", "prefill_ms_p10", "prefill_ms_p90"))
            row |= prefill[name].columns("prefill_ms", 3) if prefill else {}
            row |= compared("prefill_ratio_to_plain", prefill, name, best_prefill)
            row |= goals_of(self.page, row)
            rows.append(row | {"graph": self.device.type == "cuda"} | versions())
        return rows


# ---- translations


class SearchCase(_DecodingCase):
    """Whole translations of sentences of `TOKENS` tokens, by the width of the beam and the variant."""

    def _search(self, name: str) -> Callable[[Tensor, int, int], list[list[int]]]:
        """(sources [B, S], beam, tokens) -> each sentence's best translation."""
        base, _, how = name.partition("-")
        dtype, is_peer = DTYPES[self.dtype], TRANSLATION.is_peer(base)
        if base not in self.models:
            try:
                model = Marian(self.shape) if is_peer else model_of(self.shape.spec(TRANSLATION.networks[base]))
            except UserError as error:
                raise Unavailable(error.message) from None
            if not is_peer:
                materialise(model, self.device, seed=0)
            self.models[base] = model.to(self.device, dtype).eval()
        model = self.models[base]
        return partial(theirs, model) if is_peer else partial(ours, Uncached(model) if how == "uncached" else model)

    def builder(self) -> Callable[[tuple[int, str]], Built]:
        source_BS = self.random_tokens(BEGIN + 1, TOKENS)

        def build(key: tuple[int, str]) -> Built:
            part = partial(self._search(key[1]), source_BS, key[0], TOKENS)
            peak = peak_beyond(part, self.device)
            if peak is None:
                with Alive() as alive:
                    part()
                peak = alive.peak
            return Built({"search": part}, peak)

        return build

    def rows(
        self, ready: Mapping[tuple[int, str], Built], times: Mapping[tuple[str, tuple[int, str]], Times]
    ) -> list[Row]:
        searches, rows = {key: times["search", key] for key in ready}, []
        for beam, name in sorted(ready):
            taken, one = searches[beam, name], ready.get((1, name))
            peak = ready[beam, name].facts
            row = self.named(name, taken, beam=beam) | {"tokens": TOKENS, **taken.columns("search_ms", 3)}
            row["sentences_per_second"] = round(self.batch / taken.undisturbed, 2)
            row |= compared("ratio_to_plain", searches, (beam, name), (beam, "plain"))
            row["peak_mib"] = mebibytes(peak)
            row["peak_ratio_to_beam_1"] = round(peak / one.facts, 4) if one and one.facts else None
            rows.append(row | goals_of(self.page, row) | versions())
        return rows


def ours(model: Decodes, source_BS: Tensor, beam: int, tokens: int) -> list[list[int]]:
    """Translations by our beam search."""
    limits = [tokens] * len(source_BS)
    found = beam_search(NeverEnding(model), source_BS, width=beam, max_lengths=limits, begin=BEGIN, end=END)
    return [[*best.tokens] for best, *_ in found]


@torch.no_grad()
def theirs(model: Marian, source_BS: Tensor, beam: int, tokens: int) -> list[list[int]]:
    """Translations by transformers' `generate`."""
    found: Tensor = model.library.generate(
        input_ids=source_BS,
        attention_mask=(source_BS != PAD).long(),
        num_beams=beam,
        do_sample=False,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
    )
    return found[:, 1:].tolist()  # the first is the begin token


class NeverEnding:
    """A decoder whose hypotheses never end: they all reach the greatest length."""

    def __init__(self, model: Decodes) -> None:
        self.encode, self.decoding_cache, self._step = model.encode, model.decoding_cache, model.step

    def step(self, tokens_R1: Tensor, cache: Any, memory: Any) -> Tensor:
        logits_RV = self._step(tokens_R1, cache, memory)
        logits_RV[:, END] = -torch.inf
        return logits_RV


class Prefixes:
    """The tokens of every row so far, [R, T]: what is kept where no keys and values are."""

    def __init__(self, tokens_RT: Tensor) -> None:
        self.tokens_RT = tokens_RT

    def reorder(self, rows: Tensor) -> None:
        self.tokens_RT = self.tokens_RT[rows]


class Uncached:
    """A translator that keeps keys and values of its sources alone: every step reads all tokens so far again."""

    def __init__(self, model: Transformer) -> None:
        self.model, self.encode = model, model.encode

    def decoding_cache(self, rows: int, capacity: int) -> Prefixes:
        return Prefixes(torch.empty(rows, 0, dtype=torch.long, device=self.model.head_weight.device))

    @torch.no_grad()
    def step(self, tokens_R1: Tensor, cache: Prefixes, memory: Memory) -> Tensor:
        model, mask_B11S = self.model, memory.mask_BS[:, None, None, :]
        cache.tokens_RT = torch.cat([cache.tokens_RT, tokens_R1], dim=1)
        positions_TD = sinusoids(cache.tokens_RT.shape[1], model.shape.width, model.head_weight)
        state = State(model.embedded(cache.tokens_RT, positions_TD))
        for block, keys, values in zip(model.decoder, memory.keys, memory.values, strict=True):
            assert isinstance(block, DecoderBlock)
            state = block.decoded(state, KeysValues(keys, values, mask_B11S))
        return model.outputs(state.normalised(model.decoder_norm)[1][:, -1])
