"""Residual connections: how a block joins its skip path and its branch. One file each; found by name here."""

from __future__ import annotations

from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection, ResidualFactory
from comt_cli.layers.residual.deepnorm import DeepNorm
from comt_cli.layers.residual.layernorm_scaling import LayerNormScaling
from comt_cli.layers.residual.mix_ln import MixLN
from comt_cli.layers.residual.post_norm import PostNorm
from comt_cli.layers.residual.pre_norm import PreNorm

RESIDUAL_CONNECTIONS: dict[str, ResidualFactory] = {
    "pre-norm": PreNorm,
    "post-norm": PostNorm,
    "deepnorm": DeepNorm,
    "mix-ln": MixLN,
    "layernorm-scaling": LayerNormScaling,
}

__all__ = [
    "RESIDUAL_CONNECTIONS",
    "Branch",
    "DeepNorm",
    "Junction",
    "LayerNormScaling",
    "MixLN",
    "PostNorm",
    "PreNorm",
    "ResidualConnection",
    "ResidualFactory",
]
