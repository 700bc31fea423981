"""Values of the gates of a network of tokens, site by site and layer by layer, and their summary.

Shapes: T tokens, N channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from comt_cli.analysis.observed import Observation, watch
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import Loaded
from comt_cli.layers.gates import CarriesGates, EvaluatorAdjuster
from comt_cli.methods.base import PROJECTIONS

Values = NDArray[np.float32]

NEAR_END = 0.05
"""A value is saturated within this share of the range from either end."""


@dataclass(frozen=True)
class SiteValues:
    """Values of one gate on every token that it reads.

    Attributes:
        where: the site as columns of a frame: `site`, and before it `stack`, `part` and `text` (the sequence that the
            gate reads) where the network reads several sequences.
        kind: `scalar` (N = 1), `head` (N = heads), `channel`; `evaluator`, the e of an Evaluator-Adjuster Unit.
        layer: from 1.
        values: fp32 [T, N]; `ends`: their interval, None for a gate that does not state one.
        tokens: the names of the tokens.
    """

    where: dict[str, str]
    kind: str
    layer: int
    values: Values
    ends: tuple[float, float] | None
    tokens: Sequence[str] = ()

    @property
    def site(self) -> str:
        """The projection, or the branch, that the gate is at."""
        return self.where["site"]


def has_gates(loaded: Loaded) -> bool:
    """Whether a network of tokens has gates at any site."""
    return bool(_carriers(loaded))


def _carriers(loaded: Loaded) -> list[CarriesGates]:
    return [module for module in loaded.model.modules() if isinstance(module, CarriesGates) and module.gates]


def observed_gates(loaded: Loaded, on: Observation) -> list[SiteValues]:
    """Values of every gate in one forward pass: branch by branch in the order of the model, in each the projections as
    they are usually listed before other sites, each from layer to layer.

    Raises:
        UserError: the network has no gates, or none that a figure can show (says what it has); see `watch`.
    """
    modules = _carriers(loaded)
    if not modules:
        raise UserError(f"{loaded.name} has no gates to analyse: it holds {loaded.description}")
    kept: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, x_BTD: Tensor, _: object) -> None:
        kept[module] = x_BTD[0]

    units = [gate for module in modules for gate in module.gates.values() if isinstance(gate, EvaluatorAdjuster)]
    watch(loaded, on.inputs, [(module, partial(keep, module)) for module in (*modules, *units)])
    found: list[tuple[tuple[str, ...], SiteValues]] = []
    for module in modules:
        block, text = module.sites[0], on.read_by(module)
        with torch.no_grad():
            factors = module.gate_values(kept[module])
            for name, gate in module.gates.items():
                if isinstance(gate, EvaluatorAdjuster):
                    factors[name] = {"evaluator": gate.evaluation(kept[gate])}
        for site, by_kind in factors.items():
            where = {"stack": block.stack, "part": block.part, "text": text, "site": site}
            columns = where if len(on.sequences) > 1 else {"site": site}
            for kind, value in by_kind.items():
                ends = (0.0, 1.0) if "evaluator" in by_kind else module.gate(site).factor_range
                # A gate that does not look at its input has one value for all tokens.
                tokens = on.sequences[text].pieces
                values = value.expand((len(tokens), value.shape[-1])).numpy()
                found.append(
                    ((*where.values(), kind), SiteValues(columns, kind, block.layer + 1, values, ends, tokens))
                )
    if not found:
        raise UserError(f"{loaded.name} has gates that multiply nothing: it holds {loaded.description}")
    keys = list(dict.fromkeys(key for key, _ in found))
    branches = list(dict.fromkeys(key[:2] for key in keys))

    def rank(key: tuple[str, ...]) -> tuple[int, int, int]:
        site = key[3]
        within = PROJECTIONS.index(site) if site in PROJECTIONS else len(PROJECTIONS)
        return branches.index(key[:2]), within, keys.index(key)

    return [values for _, values in sorted(found, key=lambda item: rank(item[0]))]


def summary_frame(values: Iterable[SiteValues]) -> pd.DataFrame:
    """Mean, spread and saturation of each gate, over all tokens and channels, per layer and site.

    Columns `site, kind, layer, mean, std, p5, p95` (5th and 95th percentile), `saturation` (the share of values within
    5 % of either end of the range) and the range's ends `low, high`; the last three are empty where it is not known.
    Where there are several sequences, `stack, part, text` come first.
    """
    rows = []
    for each in values:
        value, (low, high) = each.values, each.ends or (np.nan, np.nan)
        margin = NEAR_END * (high - low)
        p5, p95 = np.percentile(value, [5, 95])
        outer = ((value < low + margin) | (value > high - margin)).mean() if low < high else np.nan
        measures = {"mean": value.mean(), "std": value.std(), "p5": p5, "p95": p95, "saturation": outer}
        rows.append({**each.where, "kind": each.kind, "layer": each.layer, **measures, "low": low, "high": high})
    return pd.DataFrame(rows)
