"""Residual connections: how a block joins its skip path and its branch. One family a file; found by name here."""

from __future__ import annotations

from comt_cli.layers.residual.base import (
    Branch,
    Junction,
    Pending,
    ResidualConnection,
    ResidualFactory,
    State,
    normalised,
    settled,
    stream_of,
)
from comt_cli.layers.residual.deepnorm import DeepNorm
from comt_cli.layers.residual.deepnorm_mixln_code import DeepNormOfMixLNCode
from comt_cli.layers.residual.grc import GatedResidual
from comt_cli.layers.residual.highway import Highway
from comt_cli.layers.residual.laurel import LaurelLR, LaurelPA, LaurelRW, LaurelRWLR
from comt_cli.layers.residual.layernorm_scaling import LayerNormScaling
from comt_cli.layers.residual.mix_ln import MixLN
from comt_cli.layers.residual.post_norm import PostNorm
from comt_cli.layers.residual.pre_norm import PreNorm
from comt_cli.layers.residual.rezero import ReZero
from comt_cli.layers.residual.sandwich_ln import SandwichLN
from comt_cli.layers.residual.sas import SelfAdaptiveScaling
from comt_cli.layers.residual.scaled import ScaledBranch
from comt_cli.layers.residual.scaled_init import ScaledInit
from comt_cli.layers.residual.scaling_gate import GatedShare

RESIDUAL_CONNECTIONS: dict[str, ResidualFactory] = {
    "pre-norm": PreNorm,
    "post-norm": PostNorm,
    "deepnorm": DeepNorm,
    "deepnorm-mixln-code": DeepNormOfMixLNCode,
    "mix-ln": MixLN,
    "layernorm-scaling": LayerNormScaling,
    "sandwich-ln": SandwichLN,
    "scaled-init": ScaledInit,
    "rezero": ReZero,
    "highway": Highway,
    "laurel-rw": LaurelRW,
    "laurel-lr": LaurelLR,
    "laurel-pa": LaurelPA,
    "laurel-rw-lr": LaurelRWLR,
    "sas": SelfAdaptiveScaling,
    "grc": GatedResidual,
    "scaled": ScaledBranch,
}

__all__ = [
    "RESIDUAL_CONNECTIONS",
    "Branch",
    "DeepNorm",
    "DeepNormOfMixLNCode",
    "GatedResidual",
    "GatedShare",
    "Highway",
    "Junction",
    "LaurelLR",
    "LaurelPA",
    "LaurelRW",
    "LaurelRWLR",
    "LayerNormScaling",
    "MixLN",
    "Pending",
    "PostNorm",
    "PreNorm",
    "ReZero",
    "ResidualConnection",
    "ResidualFactory",
    "SandwichLN",
    "ScaledBranch",
    "ScaledInit",
    "SelfAdaptiveScaling",
    "State",
    "normalised",
    "settled",
    "stream_of",
]
