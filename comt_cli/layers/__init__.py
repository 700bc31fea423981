"""Building blocks of models: projections with gates, residual connections, attention. Nothing here names a method.

Gates and connections can be imported from here: `from comt_cli.layers import ComtGate`.
"""

# ruff: noqa: I001 - several names a line
from comt_cli.layers.convolution import PixelGate, WindowGate
from comt_cli.layers.gates import (
    ComtGate, EvaluatorAdjuster, FullRankGate, Gate, HeadGate, Site, StaticGate, TransponderGate,
)  # fmt: skip
from comt_cli.layers.residual.attention_residuals import AttentionResiduals, DeepCrossAttention, DeltaAttentionResiduals
from comt_cli.layers.residual.base import ResidualConnection, ResidualSite, State
from comt_cli.layers.residual.dense import DenseFormer, MultiwayDense, StartLambdas
from comt_cli.layers.residual.hyper_connections import HyperConnection, ManifoldHyperConnection
from comt_cli.layers.residual.norm_placement import (
    DeepNorm, DeepNormOfMixLNCode, HybridNorm, Keel, LayerNormScaling, MixLN, PostNorm, PreNorm, SandwichLN, ScaledInit,
    SiameseNorm,
)  # fmt: skip
from comt_cli.layers.residual.scaled import (
    GatedResidual, Highway, LaurelLR, LaurelPA, LaurelRW, LaurelRWLR, ProgressiveResidual, ReZero, ScaledBranch,
    SelfAdaptiveScaling,
)  # fmt: skip
from comt_cli.layers.residual.skips import Backout, SkipGates

__all__ = [
    "AttentionResiduals", "Backout", "ComtGate", "DeepCrossAttention", "DeepNorm", "DeepNormOfMixLNCode",
    "DeltaAttentionResiduals", "DenseFormer", "EvaluatorAdjuster", "FullRankGate", "Gate", "GatedResidual",
    "HeadGate", "Highway", "HybridNorm", "HyperConnection", "Keel", "LaurelLR", "LaurelPA", "LaurelRW", "LaurelRWLR",
    "LayerNormScaling", "ManifoldHyperConnection", "MixLN", "MultiwayDense", "PixelGate", "PostNorm", "PreNorm",
    "ProgressiveResidual", "ReZero", "ResidualConnection", "ResidualSite", "SandwichLN", "ScaledBranch", "ScaledInit",
    "SelfAdaptiveScaling", "SiameseNorm", "Site", "SkipGates", "StartLambdas", "State", "StaticGate",
    "TransponderGate", "WindowGate",
]  # fmt: skip
