"""Building blocks of models: projections with gates, residual connections, attention. Nothing here names a method.
Gates and connections are here by name, imported when asked for: `from comt_cli.layers import ComtGate`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "gates": "ComtGate EvaluatorAdjuster FullRankGate Gate HeadGate Site StaticGate TransponderGate",
    "convolution": "PixelGate WindowGate",
    "residual.attention_residuals": "AttentionResiduals DeepCrossAttention DeltaAttentionResiduals",
    "residual.base": "ResidualConnection ResidualSite State",
    "residual.dense": "DenseFormer MultiwayDense StartLambdas",
    "residual.hyper_connections": "HyperConnection ManifoldHyperConnection",
    "residual.laurel": "LaurelLR LaurelPA LaurelRW LaurelRWLR",
    "residual.norm_placement": "DeepNorm DeepNormOfMixLNCode Keel LayerNormScaling MixLN PostNorm PreNorm SandwichLN "
    "ScaledInit SiameseNorm",
    "residual.sas": "SelfAdaptiveScaling",
    "residual.scaled": "GatedResidual Highway ProgressiveResidual ReZero ScaledBranch",
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_MODULES)  # noqa: PLE0605

if TYPE_CHECKING:  # type checkers take the names from the files
    # ruff: noqa: F403
    from comt_cli.layers.convolution import *
    from comt_cli.layers.gates import *
    from comt_cli.layers.residual.attention_residuals import *
    from comt_cli.layers.residual.base import *
    from comt_cli.layers.residual.dense import *
    from comt_cli.layers.residual.hyper_connections import *
    from comt_cli.layers.residual.laurel import *
    from comt_cli.layers.residual.norm_placement import *
    from comt_cli.layers.residual.sas import *
    from comt_cli.layers.residual.scaled import *
else:

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES[name]), name)
