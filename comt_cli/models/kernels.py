"""Choice of hand-written kernels for the operations of a model, and switching between them.

A part with `fused` set computes its operation by one kernel; a new model has none set. There are kernels for parts of
token blocks, and for training on a CPU for norms after a convolution, with gates, addition and ReLU.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from comt_cli.kernels.choice import Choice, Gates, NormGate, Op, choose, choose_norm, use_tiles
from comt_cli.layers.attention import Attention, FeedForward
from comt_cli.layers.convolution import BatchNorm, ConvolutionNorm, PixelGate, WindowGate
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.models.base import Model, TokenBlock
from comt_cli.recipe.settings import Kernels as Wanted

NORMS: dict[NormGate, str] = {
    "none": "batch_norm",
    "window": "window_norm",
    "pixel": "pixel_norm",
    "both": "window_and_pixel_norm",
}
"""Names in records of a batch norm after a convolution, by the gates of both."""

M = TypeVar("M", bound=nn.Module)


def use_kernels(
    model: Model, wanted: Wanted, device: torch.device, dtype: torch.dtype, *, compiled: bool, training: bool = True,
    tokens: int | None = None, only: bool = False,
) -> dict[str, Choice]:  # fmt: skip
    """Choose kernel or reference for every operation of `model`, switch its parts, and return the choices with reasons,
    without operations that the model lacks. `device` is where the model will run, `dtype` the type of its products
    (bf16 under autocast), `compiled` whether the rest of it will be compiled, `training` whether it will be trained,
    `tokens` the number of tokens at once, if known. `only`: no other model of this process will be used again."""
    choices: dict[str, Choice] = {}
    how = {"compiled": compiled, "training": training}
    for op, sources in _sources(model).items():
        if op == "heads" and not all(_fits_heads(block) for block in _those(model, TokenBlock)):
            choices[op] = Choice(
                False, "the kernel has no shared keys or values, and no inputs or norms of q, k, v each"
            )
            continue
        each = []
        for projections in sources:
            if (modulation := projections.modulation()) is None:
                each.append(Choice(False, "there is no kernel for pointwise gates or for gates of different kinds"))
                continue
            Wc, ws, _, rank, _ = modulation
            gates = Gates(channel=Wc is not None, scalar=ws is not None, rank=rank) if rank else None
            each.append(choose(op, wanted, device, dtype, sum(projections.widths), gates, tokens=tokens, **how))
        together = replace(each[0], tiles=tuple({key: tile for choice in each for key, tile in choice.tiles}.items()))
        choices[op] = next((choice for choice in each if not choice.fused), together)
    for op, parts in _token_parts(model).items():
        for part in parts:
            part.fused = op in choices and choices[op].fused
    units = _units(model)
    for gate, alike in sorted(units.items()):
        carriers: list[Any] = [part for unit in alike for part in (unit.convolution, unit.norm)]
        read = [A for part in carriers if part.gate is not None and (A := part.gate.down_projection()) is not None]
        channels = min(len(unit.norm.get_parameter("bias")) for unit in alike)
        hidden = max(map(len, read), default=0)
        choices[NORMS[gate]] = choose_norm(wanted, device, dtype, channels, gate, hidden, **how)
        for unit in alike:
            unit.fused = choices[NORMS[gate]].fused
    use_tiles(choices.values(), only=only)
    if any(choice.fused for choice in choices.values()):
        importlib.import_module("torch._dynamo")  # an operator's first call does, for seconds; here no clock runs
    return choices


def _sources(model: Model) -> dict[Op, list[Projections]]:
    """For each operation on tokens, the projections that decide by their shapes and gates: those of the first block of
    every stack, since all blocks of a stack are alike."""
    sources: dict[Op, list[Projections]] = {"heads": [], "swiglu": [], "add_norm": [], "modulate": []}
    for block in (stack[0] for stack in model.stacks.values()):
        if not isinstance(block, TokenBlock):
            continue
        sources["heads"] += [each.qkv for each in _those(block, Attention)]
        sources["swiglu"] += [each.gate_up for each in _those(block, FeedForward)]
        first = block.connections[0]
        is_pre_norm = isinstance(first, PreNorm) and isinstance(first.norm, nn.RMSNorm)
        if is_pre_norm and getattr(block, f"{block.parts[0]}_path") is None:
            sources["add_norm"] += _alone(block)
        else:
            sources["modulate"] += [projections for projections in _alone(block) if projections.gates]
    return {op: found for op, found in sources.items() if found}


def _fits_heads(block: TokenBlock) -> bool:
    shared = [each.shared for each in _those(block, Attention) if each.shared is not None]
    has_separate_qkv = any("values" in connection.needs for connection in block.connections)
    has_norms = any(connection.norms_heads for connection in block.connections)
    return not (has_separate_qkv or has_norms) and all(each.has_values and not each.mixes_keys for each in shared)


def _token_parts(model: Model) -> dict[Op, list[Attention | FeedForward | PreNorm | Projections]]:
    blocks = _those(model, TokenBlock)
    return {
        "heads": [*_those(model, Attention)],
        "swiglu": [*_those(model, FeedForward)],
        "add_norm": [connection for block in blocks for connection in _those(block, PreNorm)],
        "modulate": [projections for block in blocks for projections in _alone(block)],
    }


def _alone(block: nn.Module) -> list[Projections]:
    """Projections whose gates no kernel applies together with the next operation."""
    taken = {id(each.qkv) for each in _those(block, Attention)}
    taken |= {id(each.gate_up) for each in _those(block, FeedForward)}
    return [each for each in _those(block, Projections) if id(each) not in taken]


def _those(module: nn.Module, kind: type[M]) -> list[M]:
    return [part for part in module.modules() if isinstance(part, kind)]


def _units(model: Model) -> dict[NormGate, list[ConvolutionNorm]]:
    units: dict[NormGate, list[ConvolutionNorm]] = {}
    for unit in _those(model, ConvolutionNorm):
        if type(unit.norm) is not BatchNorm:
            continue
        window, pixel = unit.convolution.gate, unit.norm.gate
        if isinstance(window, WindowGate | None) and isinstance(pixel, PixelGate | None):
            kind: NormGate = "both" if window and pixel else "window" if window else "pixel" if pixel else "none"
            units.setdefault(kind, []).append(unit)
    return units
