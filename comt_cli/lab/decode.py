"""Decoding of language models, timed: steps with a key-value cache, and the reading of the prompt.

A row is one variant at one batch size: `decode_ms` is a step, a token of every text, on CUDA a captured graph that is
replayed; `prefill_ms` the reading of all prompts. Ratios are to `best_plain`, for the reading to the quicker plain one
there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from comt_cli.generation.cached import Decoder, decode_step
from comt_cli.lab.runner import DTYPES, Built, Case, Row, Unavailable, versions
from comt_cli.lab.subjects import LANGUAGE, Shape
from comt_cli.lab.timing import Part, Times, compared, quickest
from comt_cli.models.build import materialise, model_of
from comt_cli.models.kernels import use_kernels
from comt_cli.models.llama import Llama
from comt_cli.training.devices import device_name

PLAIN = ["plain", "plain-fused"]
PROMPT = 512  # tokens of every prompt: what is read, and what a decode step looks back on
STEPS = 8  # decode steps that are timed in a row
MOST_PREFILL_ON_CPU = 8192  # tokens in all; beyond, a CPU would read for minutes, and the reading is not timed


def decoding_cases(
    sizes: Sequence[str] | None,
    variants: Sequence[str],
    dtypes: Sequence[str] | None,
    batches: Sequence[int] | None,
    device: torch.device,
) -> Iterator[DecodeCase]:
    """A case of each size, type and batch size, those that are usual if None."""
    there = sizes or LANGUAGE.default_sizes(device.type), dtypes or ["bf16"], batches or [1, 4, 16, 64]
    for size, dtype, batch in itertools.product(*there):
        yield DecodeCase(LANGUAGE.shapes[size], dtype, batch, variants, device)


@dataclass
class DecodeCase(Case):
    """Decode steps of language models of one shape, type and batch size, and the reading of their prompts."""

    shape: Shape
    dtype: str
    batch: int
    keys: Sequence[str]
    device: torch.device

    page = "decode"
    deterministic = False  # as `comt generate` runs

    def __post_init__(self) -> None:
        self.what = f"{self.shape.size} {self.dtype} batch {self.batch}"

    def build(self, key: str, shared: dict[Any, Any]) -> Built:
        graph, dtype = self.device.type == "cuda", DTYPES[self.dtype]
        if "prompts" not in shared:
            generator, shape = torch.Generator().manual_seed(0), (self.batch, PROMPT)
            tokens_BT = torch.randint(0, self.shape.dimensions["vocabulary"], shape, generator=generator)
            shared["prompts"] = tokens_BT.to(self.device)
        model = cast(Llama, model_of(self.shape.spec(LANGUAGE.networks[key.partition("-")[0]])))
        materialise(model, self.device, seed=0)
        model.to(dtype).eval()
        tokens_B = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        if key.endswith("-fused"):
            choices = use_kernels(model, "fused", self.device, dtype, compiled=False, tokens=self.batch).values()
            if not any(choice.fused for choice in choices):
                raise Unavailable(f"nothing is fused here ({'; '.join(choice.reason for choice in choices)})")
        decoder = Decoder(model, self.batch, PROMPT + STEPS, graph=graph)

        @torch.no_grad()
        def prefill() -> None:
            decoder.cache.begin([PROMPT] * self.batch)
            decode_step(decoder.model, decoder.cache, shared["prompts"])  # any number of tokens are one step

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

    def rows(self, ready: Mapping[str, Built], times: Mapping[tuple[str, str], Times]) -> list[Row]:
        decode = {name: times["decode", name] for name in ready}
        prefill = {name: times["prefill", name] for name in ready if ("prefill", name) in times}
        best, best_prefill = quickest(decode, PLAIN), quickest(prefill, PLAIN)
        shape, rows = f"{self.shape.network}-v{self.shape.dimensions['vocabulary']}", []
        for name in ready:
            step = replace(decode[name], seconds=tuple(second / STEPS for second in decode[name].seconds))
            row: Row = {"device": device_name(self.device), "size": self.shape.size, "shape": shape}
            row |= {"dtype": self.dtype, "batch": self.batch, "variant": name, "rounds": len(step.seconds)}
            row |= {"prompt": PROMPT, **step.columns("decode_ms")}
            row |= {"tokens_per_second": round(self.batch / step.undisturbed, 1), "best_plain": best}
            row |= compared("decode_ratio_to_plain", decode, name, best)
            row |= dict.fromkeys(("prefill_ms", "prefill_ms_p10", "prefill_ms_p90"))
            row |= prefill[name].columns("prefill_ms", 3) if prefill else {}
            row |= compared("prefill_ratio_to_plain", prefill, name, best_prefill)
            rows.append(row | {"graph": self.device.type == "cuda"} | versions())
        return rows
