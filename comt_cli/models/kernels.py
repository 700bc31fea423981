"""Which operations of a model are computed by hand-written kernels, and switching them over.

The model says what is computed; a part whose `fused` is set has a kernel do it in one pass. A new model has none set.
"""

from __future__ import annotations

import importlib

import torch
from torch import nn

from comt_cli.kernels.choice import Choice, Gates, Op, Wanted, choose
from comt_cli.kernels.modulation import Modulation
from comt_cli.layers.attention import Attention, FeedForward
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.pre_norm import PreNorm
from comt_cli.models.llama import Block, Llama


def use_kernels(
    model: Llama, wanted: Wanted, device: torch.device, dtype: torch.dtype, *, compiled: bool, training: bool = True
) -> dict[str, Choice]:
    """Choose for every operation of `model` between kernel and reference, switch its parts over, and say what and why.

    `device` is where the model will run, `dtype` the type of its matrix products (bf16 under autocast), `compiled`
    whether the rest of it will be compiled, `training` whether it will be. Shapes and kinds of gates are those of the
    first block; all blocks have the same. An operation that the model does not have is left out.
    """
    block = model.blocks[0]
    assert isinstance(block, Block)
    last = [block.attention.output, block.mlp.down]
    sources: dict[Op, list[Projections]] = {"heads": [block.attention.qkv], "swiglu": [block.mlp.gate_up]}
    connection = block.attention_connection
    if isinstance(connection, PreNorm) and isinstance(connection.norm, nn.RMSNorm) and block.attention_path is None:
        sources["add_norm"] = last
    elif gated := [projections for projections in last if projections.gates]:
        sources["modulate"] = gated
    choices: dict[str, Choice] = {}
    for op, all_projections in sources.items():
        each = []
        for projections in all_projections:
            modulation = projections.modulation()
            if modulation is None:
                each.append(Choice(False, "gates that are pointwise, or not all alike, need no kernel or have none"))
            else:
                width, gates = sum(projections.widths), _gates(modulation)
                each.append(choose(op, wanted, device, dtype, width, gates, compiled=compiled, training=training))
        choices[op] = next((choice for choice in each if not choice.fused), each[0])
    for block in model.blocks:
        assert isinstance(block, Block)
        parts: dict[Op, list[Attention | FeedForward | PreNorm | Projections]] = {
            "heads": [block.attention],
            "swiglu": [block.mlp],
            "add_norm": [c for c in (block.attention_connection, block.mlp_connection) if isinstance(c, PreNorm)],
            "modulate": [block.attention.output, block.mlp.down],
        }
        for op, modules in parts.items():
            for module in modules:
                module.fused = op in choices and choices[op].fused
    if any(choice.fused for choice in choices.values()):
        importlib.import_module("torch._dynamo")  # an operator's first call does, for seconds: here no clock runs
    return choices


def _gates(modulation: Modulation) -> Gates | None:
    if not modulation.rank:
        return None
    return Gates(channel=modulation.Wc is not None, scalar=modulation.ws is not None, rank=modulation.rank)
