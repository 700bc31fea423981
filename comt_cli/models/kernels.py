"""Which operations of a model are computed by hand-written kernels, and switching them over.

The model says what is computed; a part whose `fused` is set has a kernel do it in one pass. A new model has none set.
"""

from __future__ import annotations

import torch
from torch import nn

from comt_cli.kernels.choice import Choice, Gates, Op, Wanted, choose
from comt_cli.kernels.modulation import Modulation
from comt_cli.layers.attention import Attention, FeedForward
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.pre_norm import PreNorm
from comt_cli.models.llama import Block, Llama


def use_kernels(
    model: Llama, wanted: Wanted, device: torch.device, dtype: torch.dtype, *, compiled: bool
) -> dict[str, Choice]:
    """Choose for every operation of `model` between kernel and reference, switch its parts over, and say what and why.

    `device` is where the model will run, `dtype` the type of its matrix products (bf16 under autocast), `compiled`
    whether the rest of it will be compiled. Shapes and kinds of gates are those of the first block; all blocks have the
    same. An operation that the model does not have is left out.
    """
    block = model.blocks[0]
    assert isinstance(block, Block)
    sources: dict[Op, Projections] = {
        "heads": block.attention.qkv,
        "swiglu": block.mlp.gate_up,
        "add_norm": block.attention.output,
        "modulate": block.attention.output,
    }
    adds_to_stream = isinstance(block.attention_connection, PreNorm) and isinstance(
        block.attention_connection.norm, nn.RMSNorm
    )
    del sources["modulate" if adds_to_stream and block.attention_path is None else "add_norm"]
    choices: dict[str, Choice] = {}
    for op, projections in sources.items():
        modulation = projections.modulation()
        if modulation is None:
            choices[op] = Choice(False, "gates of this form are pointwise, which needs no kernel")
        else:
            width = sum(projections.widths)
            choices[op] = choose(op, wanted, device, dtype, width, _gates(modulation), compiled=compiled)
    for module in model.modules():
        for op, kind in _PARTS.items():
            if isinstance(module, kind):
                module.fused = op in choices and choices[op].fused
    return choices


_PARTS: dict[Op, type[Attention | FeedForward | PreNorm | Projections]] = {
    "heads": Attention,
    "swiglu": FeedForward,
    "add_norm": PreNorm,
    "modulate": Projections,
}


def _gates(modulation: Modulation) -> Gates | None:
    if not modulation.rank:
        return None
    return Gates(channel=modulation.Wc is not None, scalar=modulation.ws is not None, rank=modulation.rank)
