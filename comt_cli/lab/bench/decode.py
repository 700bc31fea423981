"""How long a generated token takes: a decode step with a key-value cache, and the reading of the prompt.

On CUDA the step is a captured graph that is replayed. All variants of one batch size take turns (`rounds`). A row is
one variant at one batch size: `decode_ms` is a step, a token of every text; `prefill_ms` the reading of all prompts.
Ratios are to `best_plain`, for the reading to the quicker plain one there; the goal is of both kinds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from comt_cli.generation.cached import Decoder, decode_step
from comt_cli.kernels.choice import use_tiles
from comt_cli.lab.bench.ending import failed
from comt_cli.lab.bench.kernel_cases import DTYPES
from comt_cli.lab.bench.memory import free
from comt_cli.lab.bench.origin import origin_on
from comt_cli.lab.bench.rounds import GoOn, Part, Turns, always, compared, each_in_time, quickest, unsettled
from comt_cli.lab.bench.shapes import Shape
from comt_cli.lab.bench.subjects import LANGUAGE, decode_goals
from comt_cli.models.build import empty_network, materialise, wiring_of
from comt_cli.models.kernels import use_kernels
from comt_cli.models.llama import Llama
from comt_cli.tasks.settings.llama import ModelSettings
from comt_cli.training.devices import prepare_process

PLAIN = ["plain", "plain-fused"]
PROMPT = 512
"""Tokens of every prompt: what is read, and what a decode step looks back on."""
STEPS = 8
"""Decode steps that are timed in a row."""
MOST_PREFILL_ON_CPU = 8192
"""Tokens in all; beyond, a CPU would read for minutes, and the reading is not timed."""
_READING = ("prefill_ms", "prefill_ms_p10", "prefill_ms_p90")

Row = dict[str, Any]
News = Iterator[str | list[Row]]
M = TypeVar("M")


def run_decode_benchmark(
    shapes: Sequence[Shape],
    variants: Sequence[str],
    dtypes: Sequence[str],
    batches: Sequence[int],
    device: torch.device,
    rounds: int,
    go_on: GoOn = always,
) -> News:
    """Measure; yields lines of progress, and the rows of a batch size. `go_on` is asked before each and each turn:
    where it says no, a line names what is left out. What fails is reported (`Failed`), and the rest is measured."""
    yield from over_batches(shapes, variants, dtypes, batches, Turns(device, rounds, go_on), _build, _measure)


def over_batches(
    shapes: Sequence[Shape],
    variants: Sequence[str],
    dtypes: Sequence[str],
    batches: Sequence[int],
    turns: Turns,
    build: Callable[[Shape, Sequence[str], torch.dtype, torch.device, dict[str, M]], Iterable[str]],
    measure: Callable[[Shape, str, int, dict[str, M], Turns], News],
) -> News:
    """What `measure` yields of every shape, type and batch size, on the models that `build` fills in by name; lines of
    progress, and of what failed."""
    device, go_on = turns.device, turns.go_on

    def measured(what: str, *of: Any) -> News:
        try:
            yield from measure(*of)
        except torch.cuda.OutOfMemoryError:  # of all: what fits alone is compared with nothing
            yield f"{what}: left out, does not fit"
        else:
            yield f"{what}: measured"

    with as_generating(device):
        for shape, dtype in itertools.product(shapes, dtypes):
            models: dict[str, M] = {}
            if not go_on():
                yield f"{shape.size} {dtype}: left out for want of time"
                continue
            try:
                yield from build(shape, variants, DTYPES[dtype], device, models)
            except Exception as error:
                yield failed(f"{shape.size} {dtype} models", error)
            named = {f"{shape.size} {dtype} batch {batch}": batch for batch in (batches if models else ())}
            how = {what: partial(measured, what, shape, dtype, n, models, turns) for what, n in named.items()}
            yield from each_in_time(how, turns)
            how.clear()
            models.clear()
            free(device)


@contextlib.contextmanager
def as_generating(device: torch.device) -> Iterator[None]:
    """The settings that `comt generate` runs with: on CUDA not those of training, whose deterministic algorithms cost
    time. They are put back at the end."""
    if device.type != "cuda":
        prepare_process(device)  # keeps freed memory, which makes times steadier
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _build(
    shape: Shape, variants: Sequence[str], dtype: torch.dtype, device: torch.device, models: dict[str, Llama]
) -> list[str]:
    """Fill `models` with the variants, those of one network with the same weights; there is nothing to tell."""
    first: dict[str, Llama] = {}
    for name in variants:
        base = name.partition("-")[0]
        settings = ModelSettings.model_validate(dict(shape.model))
        model = empty_network(settings, wiring_of(dict(LANGUAGE.networks[base].method)), **shape.dimensions)
        if base in first:
            model.load_state_dict(first[base].state_dict(keep_vars=True), assign=True)
        else:
            materialise(model, device, seed=0)
            first[base] = model.to(dtype)
        models[name] = model.eval()
    return []


def _measure(shape: Shape, dtype: str, batch: int, models: dict[str, Llama], turns: Turns) -> News:
    device, generator, prompt = turns.device, torch.Generator().manual_seed(0), PROMPT
    what = f"{shape.size} {dtype} batch {batch}"
    vocabulary = shape.dimensions["vocabulary"]
    prompts_BT = torch.randint(0, vocabulary, (batch, prompt), generator=generator).to(device)
    tokens_B = torch.zeros(batch, dtype=torch.int64, device=device)
    graph = device.type == "cuda"
    reads = graph or batch * prompt <= MOST_PREFILL_ON_CPU
    parts: dict[tuple[str, str], Part] = {}
    ready = []
    use_tiles((), only=True)  # of another batch or type
    for name, model in models.items():
        if not turns.go_on():
            yield f"{what}: left out for want of time"
            return
        try:
            if name.endswith("-fused"):
                choices = use_kernels(model, "fused", device, DTYPES[dtype], compiled=False, tokens=batch)
                if not any(choice.fused for choice in choices.values()):
                    reasons = "; ".join(choice.reason for choice in choices.values())
                    yield f"{what} {name}: left out, nothing is fused here ({reasons})"
                    continue
            decoder = Decoder(model, batch, prompt + STEPS, graph=graph)
            own = {"prefill": _prefill(decoder, prompts_BT)} if reads else {}
            own["decode"] = _decode(decoder, tokens_B, prompt)
            for part in own.values():
                part()
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            yield failed(f"{what} {name}", error)
            continue
        ready.append(name)
        parts |= {(kind, name): part for kind, part in own.items()}
    if not ready:
        return
    times = turns.of(parts)
    if (still := unsettled(times)) is not None:
        yield f"{what}: {still}"
    decode, prefill = (
        {name: each for (kind, name), each in times.items() if kind == wanted} for wanted in ("decode", "prefill")
    )
    best, best_prefill = quickest(decode, PLAIN), quickest(prefill, PLAIN)
    origin = origin_on(device)
    rows = []
    for name in ready:
        per_step = dataclasses.replace(decode[name], seconds=tuple(seconds / STEPS for seconds in decode[name].seconds))
        reading = prefill[name].columns("prefill_ms", 3) if reads else dict.fromkeys(_READING)
        row: Row = {
            **{"device": origin.device, "size": shape.size, "shape": f"{shape.network}-v{vocabulary}"},
            **{"dtype": dtype, "batch": batch, "variant": name, "rounds": len(per_step.seconds), "prompt": prompt},
            **per_step.columns("decode_ms"),
            "tokens_per_second": round(batch / per_step.undisturbed, 1),
            "best_plain": best,
            **compared("decode_ratio_to_plain", decode, name, best),
            **reading,
            **compared("prefill_ratio_to_plain", prefill, name, best_prefill),
        }
        rows.append(row | decode_goals(row, device.type) | {"graph": graph} | origin.versions())
    yield rows


def _prefill(decoder: Decoder, prompts_BT: Tensor) -> Part:
    B, T = prompts_BT.shape

    @torch.no_grad()
    def part() -> None:
        decoder.cache.begin([T] * B)
        decode_step(decoder.model, decoder.cache, prompts_BT)  # any number of tokens are one step

    return part


def _decode(decoder: Decoder, tokens_B: Tensor, prompt: int) -> Part:
    def part() -> None:
        decoder.cache.rewind(prompt)
        for _ in range(STEPS):
            decoder.step(tokens_B)

    return part
