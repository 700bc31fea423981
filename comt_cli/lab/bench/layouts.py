"""The pages of measured speeds: what each shows of its CSV. The names of variants and sizes are handed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from comt_cli import words
from comt_cli.lab.bench.figure import draw_kernels, draw_steps
from comt_cli.lab.bench.page import TOO_NOISY, Column, Goal, Page, shown, spread, word

_IN_TURNS = (
    "Variants took turns. A time is the 20th percentile of its turns, since other work only slows them, and a ratio is",
    "that of two such times; below 1 is faster. In rows without a recorded spread (p90 / p10) times are medians, and",
    f"ratios the medians of those within a round. Where a spread is beyond {TOO_NOISY:g} no goal is met or missed, nor",
    "where the verdict is `not settled`: the goal lies within the 90 % interval of the value (±), or there were too",
    "few rounds for an interval.",
)
_COMMITS = "A run that is repeated with all of its variants replaces the older one; the other rows stay."


def step_page(
    name: str,
    title: str,
    said: Sequence[str],
    variants: Mapping[str, str],
    sizes: Sequence[str],
    best_plain: Sequence[str],
    unit: str,
    peers: Sequence[str],
    goals: Mapping[str, str],
    *,
    has_arithmetic: bool = False,
) -> Page:
    """Training steps and forward passes of whole models that take in `unit`s, beside those of other libraries,
    `peers`. The best plain one is the quickest of `best_plain`; `goals` has the columns of what is asked, by what it is
    about; `has_arithmetic`: there is a column of how much longer a step would take if time were arithmetic alone."""
    beside = [*(["nondeterministic"] if any("nondeterministic" in name for name in variants) else []), *peers]
    compared = [Column(f"step / {each}", shown(f"step_ratio_to_{each}", 3)) for each in beside]
    per_second = f"{unit}_per_second"
    every = {
        "step": _ratio_goal("step_ratio_to_best_plain", "step"),
        "forward": _ratio_goal("forward_ratio_to_best_plain", "forward"),
        "saved": partial(Goal, value="saved_ratio_to_plain", what="saved"),
        "speed": partial(Goal, value=per_second, what=f"{unit}/s", at_least=True, decimals=0, timed="step_ms"),
    }
    if "compiled" in goals:
        compared.append(Column("step / plain-compiled", shown("step_ratio_to_plain_compiled", 3)))
        every["compiled"] = _ratio_goal("step_ratio_to_plain_compiled", "step / plain-compiled")
    if peers:
        every["peer"] = _ratio_goal(f"step_ratio_to_{peers[0]}", f"step / {peers[0]}")
        every["compiled_peer"] = partial(every["step"], at_least=True)
    return Page(
        name=name,
        title=title,
        said=(
            *_IN_TURNS,
            *([f"The best plain step is the quickest of {words.listing(best_plain)}."] if len(best_plain) > 1 else []),
            "`forward`: training's forward pass without gradients, loss included, beside the quickest plain one.",
            "`saved`: what a forward pass keeps for the backward pass, and its ratio to the least that a plain variant",
            "keeps. `peak`: the most that a step takes beyond weights and the optimiser's states.",
            *said,
            _COMMITS,
        ),
        key=("device", "shape", "precision", "variant"),
        sort=("size", "precision", "shape", "variant"),
        order={"size": sizes, "variant": list(variants)},
        columns=(
            *_texts("size", "shape", "precision", "variant"),
            Column("ms a step (p10 to p90)", spread("step_ms")),
            Column(f"{unit}/s", shown(per_second, 0)),
            Column("MFU", shown("mfu", 3)),
            Column("step / best plain", shown("step_ratio_to_best_plain", 3)),
            Column("FLOPs / plain", shown("flops_ratio_to_plain", 3)),
            *([Column("arithmetic / plain", shown("arithmetic_ratio_to_plain", 3))] if has_arithmetic else []),
            Column("best plain", word("best_plain"), is_number=False),
            *compared,
            Column("forward / best plain", shown("forward_ratio_to_best_plain", 3)),
            Column("saved, MiB", shown("saved_mib", 0)),
            Column("saved / plain", shown("saved_ratio_to_plain", 3)),
            Column("peak, MiB", shown("peak_mib", 0)),
        ),
        goals=tuple(make(goal=goals[about]) for about, make in every.items() if about in goals),
        meanings=variants,
        draw=draw_steps,
    )


def _ratio_goal(ratio: str, what: str) -> partial[Goal]:
    return partial(Goal, value=ratio, what=what, timed=ratio)


def _texts(*names: str) -> list[Column]:
    """Columns that show a row's own words, called as they are there."""
    return [Column(name, word(name), is_number=False) for name in names]


def kernels_page(
    variants: Mapping[str, str], ops: Mapping[str, str], gates: Sequence[str], dtypes: Sequence[str]
) -> Page:
    """Single operations, and the matrix products with columns for gates."""
    return Page(
        name="kernels",
        title="Gated operations",
        said=(
            *_IN_TURNS,
            "`step`: forward and backward together. Ratios are to the compiled operation without gates; for `gemm`,",
            "the library's products alone, to that without columns for gates. `kernels: auto` chooses by these rows.",
            _COMMITS,
        ),
        key=("device", "op", "shape", "tokens", "width", "gates", "dtype", "variant"),
        turns=("gates", "variant"),
        sort=("op", "dtype", "tokens", "width", "shape", "gates", "variant"),
        order={"op": list(ops), "variant": list(variants), "gates": gates, "dtype": dtypes},
        columns=(
            *_texts("op", "shape"),
            Column("rows", shown("tokens", 0)),
            Column("width", word("width")),
            Column("type", word("dtype"), is_number=False),
            *_texts("gates", "variant"),
            Column("forward, ms", spread("forward_ms")),
            Column("step, ms", spread("step_ms")),
            Column("forward / plain", shown("forward_ratio_to_plain_compiled", 3)),
            Column("step / plain", shown("step_ratio_to_plain_compiled", 3)),
            Column("saved, bytes", shown("saved_bytes", 0)),
        ),
        meanings={**ops, **variants},
        draw=draw_kernels,
    )


def decode_page(variants: Mapping[str, str], sizes: Sequence[str], dtypes: Sequence[str]) -> Page:
    """Decode steps and the reading of prompts."""
    return Page(
        name="decode",
        title="Decoding",
        said=(
            *_IN_TURNS,
            "A decode step gives one token of every text of the batch, behind a prompt; on CUDA it is a graph that is",
            "replayed. Ratios are to the quicker of plain and plain-fused.",
            _COMMITS,
        ),
        key=("device", "size", "shape", "dtype", "batch", "variant"),
        sort=("size", "dtype", "shape", "batch", "variant"),
        order={"size": sizes, "variant": list(variants), "dtype": dtypes},
        columns=(
            Column("size", word("size"), is_number=False),
            Column("type", word("dtype"), is_number=False),
            Column("batch", word("batch")),
            Column("variant", word("variant"), is_number=False),
            Column("ms a step (p10 to p90)", spread("decode_ms")),
            Column("tokens/s", shown("tokens_per_second", 0)),
            Column("step / plain", shown("decode_ratio_to_plain", 3)),
            Column("prompt", shown("prompt", 0)),
            Column("reading, ms", shown("prefill_ms", 1)),
            Column("reading / plain", shown("prefill_ratio_to_plain", 3)),
        ),
        goals=(_ratio_goal("decode_ratio_to_plain", "decode")(goal="goal_decode_ratio"),),
        meanings=variants,
    )


def decode_translation_page(variants: Mapping[str, str], sizes: Sequence[str], dtypes: Sequence[str]) -> Page:
    """Whole translations by beam search."""
    return Page(
        name="decode-translation",
        title="Translating",
        said=(
            *_IN_TURNS,
            "A search translates all sentences of the batch; no hypothesis may end before the last step, so that all",
            "variants take as many. Ratios are to `plain` at the same beam. `peak`: the most memory that a search",
            "takes beyond the weights (on a CPU that of all tensors), and its ratio to that of the same variant at",
            "beam 1: `plain` holds what it needs of a source once for all its beams.",
            _COMMITS,
        ),
        key=("device", "size", "shape", "dtype", "batch", "beam", "variant"),
        turns=("beam", "variant"),
        sort=("size", "dtype", "shape", "batch", "beam", "variant"),
        order={"size": sizes, "variant": list(variants), "dtype": dtypes},
        columns=(
            Column("size", word("size"), is_number=False),
            Column("type", word("dtype"), is_number=False),
            Column("sentences", word("batch")),
            Column("tokens", word("tokens")),
            Column("beam", word("beam")),
            Column("variant", word("variant"), is_number=False),
            Column("ms a search (p10 to p90)", spread("search_ms")),
            Column("sentences/s", shown("sentences_per_second", 1)),
            Column("time / plain", shown("ratio_to_plain", 3)),
            Column("peak, MiB", shown("peak_mib", 1)),
            Column("peak / beam 1", shown("peak_ratio_to_beam_1", 2)),
        ),
        goals=(_ratio_goal("ratio_to_plain", "time / plain")(goal="goal_ratio_to_plain", at_least=True),),
        meanings=variants,
    )
