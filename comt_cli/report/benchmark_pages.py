"""The pages of measured speeds: what each shows of its CSV. The names of variants and sizes are handed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from comt_cli.report.benchmark import Column, Goal, Page, shown, spread, word
from comt_cli.report.figures.benchmark import draw_kernels, draw_predicted, draw_steps

_IN_TURNS = "Variants took turns; a ratio is the median over rounds of the ratio within a round. Below 1 is faster."
_COMMITS = "Rows that were measured again replace the older ones; the others stay."
_STEP_KEY = ("device", "shape", "precision", "variant")
_STEP_SORT = ("size", "precision", "shape", "variant")


def step_page(variants: Mapping[str, str], sizes: Sequence[str]) -> Page:
    """Training steps and forward passes of whole models."""
    return Page(
        name="step",
        title="Training step",
        said=(
            _IN_TURNS,
            "The best plain step is the quicker of plain-compiled and plain-fused (for the forward pass, the quicker",
            "there). `forward`: a forward pass without gradients, loss included. `saved`: what a forward pass keeps",
            "for the backward pass, and its ratio to the least that either of the two keeps. `peak`: the most that a",
            "step takes beyond weights and moments.",
            _COMMITS,
        ),
        key=_STEP_KEY,
        sort=_STEP_SORT,
        order={"size": sizes, "variant": list(variants)},
        columns=_step_columns("tokens", "transformers"),
        goals=(
            Goal("step_ratio_to_best_plain", "goal_step_ratio", "step"),
            Goal("forward_ratio_to_best_plain", "goal_forward_ratio", "forward"),
            Goal("saved_ratio_to_plain", "goal_saved_ratio", "saved"),
            Goal("mfu", "goal_mfu", "MFU", at_least=True),
        ),
        meanings=variants,
        draw=draw_steps,
    )


def image_step_page(variants: Mapping[str, str], sizes: Sequence[str]) -> Page:
    """Training steps and forward passes of image classifiers."""
    return Page(
        name="step-images",
        title="Training step of ResNets",
        said=(
            _IN_TURNS,
            "The best plain step is the quickest of the four without modulators (for the forward pass, the quickest",
            "there). `forward`: training's forward pass without gradients, loss included. `saved`: what a forward pass",
            "keeps for the backward pass, and its ratio to the least that any of the four keeps. `peak`: the most that",
            "a step takes beyond weights and momentum. Images lie ready, channels last; augmentation is not timed.",
            "A shape ends in classes, images and their width: c10-b512x32.",
            _COMMITS,
        ),
        key=_STEP_KEY,
        sort=_STEP_SORT,
        order={"size": sizes, "variant": list(variants)},
        columns=_step_columns("images", "torchvision"),
        goals=(
            Goal("step_ratio_to_best_plain", "goal_step_ratio", "step"),
            Goal("images_per_second", "goal_images_per_second", "images/s", at_least=True, decimals=0),
        ),
        meanings=variants,
        draw=draw_steps,
    )


def _step_columns(unit: str, peer: str) -> tuple[Column, ...]:
    """What is shown of a training step that takes in `unit`s, beside the library `peer`."""
    return (
        Column("size", word("size"), is_number=False),
        Column("shape", word("shape"), is_number=False),
        Column("precision", word("precision"), is_number=False),
        Column("variant", word("variant"), is_number=False),
        Column("ms a step (p10 to p90)", spread("step_ms")),
        Column(f"{unit}/s", shown(f"{unit}_per_second", 0)),
        Column("MFU", shown("mfu", 3)),
        Column("step / best plain", shown("step_ratio_to_best_plain", 3)),
        Column("best plain", word("best_plain"), is_number=False),
        Column("predicted", shown("predicted_step_ratio", 3)),
        Column(f"step / {peer}", shown(f"step_ratio_to_{peer}", 3)),
        Column("forward / best plain", shown("forward_ratio_to_best_plain", 3)),
        Column("saved, MiB", shown("saved_mib", 0)),
        Column("saved / plain", shown("saved_ratio_to_plain", 3)),
        Column("peak, MiB", shown("peak_mib", 0)),
    )


def kernels_page(
    variants: Mapping[str, str], ops: Mapping[str, str], gates: Sequence[str], dtypes: Sequence[str]
) -> Page:
    """Single operations, and the matrix products with columns for gates."""
    return Page(
        name="kernels",
        title="Gated operations",
        said=(
            _IN_TURNS,
            "`step`: forward and backward together. Ratios are to the compiled operation without gates; for `gemm`,",
            "the library's products alone, to that without columns for gates. `kernels: auto` chooses by these rows.",
            _COMMITS,
        ),
        key=("device", "op", "shape", "tokens", "width", "gates", "dtype", "variant"),
        sort=("op", "dtype", "tokens", "width", "shape", "gates", "variant"),
        order={"op": list(ops), "variant": list(variants), "gates": gates, "dtype": dtypes},
        columns=(
            Column("op", word("op"), is_number=False),
            Column("shape", word("shape"), is_number=False),
            Column("rows", shown("tokens", 0)),
            Column("width", word("width")),
            Column("type", word("dtype"), is_number=False),
            Column("gates", word("gates"), is_number=False),
            Column("variant", word("variant"), is_number=False),
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
            _IN_TURNS,
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
        goals=(Goal("decode_ratio_to_plain", "goal_decode_ratio", "decode"),),
        meanings=variants,
    )


def predicted_page(variants: Sequence[str], sizes: Sequence[str]) -> Page:
    """What the cost model says. No measurement, and called so in every row."""
    return Page(
        name="predicted",
        title="Predicted training step (not measured)",
        said=(
            "From bytes and FLOPs on paper: 4.3 TB/s, 790 TFLOP/s dense bf16, 65,536 tokens a step, nothing measured.",
            "`eager`: every gate its own operations; `compiled`: products shared, the rest fused by a compiler, logits",
            "as products of their own; `fused`: gates in the kernels that touch the tensor anyway, products growing by",
            "the gates' columns alone; `fused-whole-tiles`: growing by whole tiles of 128 columns instead. Not",
            "modelled: launch gaps, throttling, kernels below the memory's full speed, CoMT's gates if compiled.",
        ),
        key=("device", "size", "variant"),
        sort=("size", "variant"),
        order={"size": sizes, "variant": variants},
        columns=(
            Column("size", word("size"), is_number=False),
            Column("variant", word("variant"), is_number=False),
            Column("kind", word("kind"), is_number=False),
            Column("plain step, ms", shown("plain_step_ms", 2)),
            Column("the same at 80 % of 790 TFLOP/s", shown("plain_step_ms_at_80_percent", 2)),
            Column("plain tokens/s", shown("plain_tokens_per_second", 0)),
            Column("step / plain", shown("predicted_step_ratio", 3)),
            Column("goal", shown("goal_step_ratio", 3)),
            Column("forward / plain", shown("predicted_forward_ratio", 3)),
            Column("goal", shown("goal_forward_ratio", 3)),
        ),
        draw=draw_predicted,
        measured=False,
    )


def predicted_images_page(variants: Sequence[str], sizes: Sequence[str]) -> Page:
    """What the cost model says of image classifiers. No measurement, and called so in every row."""
    return Page(
        name="predicted-images",
        title="Predicted training step of ResNets (not measured)",
        said=(
            "From bytes and FLOPs on paper: 4.3 TB/s, 790 TFLOP/s dense bf16, nothing measured. `eager`: every gate",
            "its own operations; `fused`: the gate in the passes that a fused batch norm makes anyway, a sliding",
            "window's filters in the convolution, filled up to a multiple of 8; `fused-whole-tiles`: it grows by",
            "whole tiles of 64 filters instead. Not modelled: launch gaps (which decide at a batch of 64), throttling,",
            "kernels below the memory's full speed, augmentation. A shape ends in classes, images and their width:",
            "c10-b512x32.",
        ),
        key=("device", "size", "variant"),
        sort=("size", "variant"),
        order={"size": sizes, "variant": variants},
        columns=(
            Column("size", word("size"), is_number=False),
            Column("shape", word("shape"), is_number=False),
            Column("variant", word("variant"), is_number=False),
            Column("kind", word("kind"), is_number=False),
            Column("plain step, ms", shown("plain_step_ms", 2)),
            Column("the same at 60 % of 790 TFLOP/s", shown("plain_step_ms_at_60_percent", 2)),
            Column("plain images/s", shown("plain_images_per_second", 0)),
            Column("goal", shown("goal_images_per_second", 0)),
            Column("step / plain", shown("predicted_step_ratio", 3)),
            Column("goal", shown("goal_step_ratio", 3)),
            Column("forward / plain", shown("predicted_forward_ratio", 3)),
        ),
        draw=draw_predicted,
        measured=False,
    )
