"""What the gates of a network do on a text: their values, and what they amount to per layer and module.

Shapes: L layers, T tokens, N channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from comt_cli.analysis.text import tokens_of
from comt_cli.analysis.watch import watch
from comt_cli.errors import UserError
from comt_cli.exchange.loaded_text import LoadedText
from comt_cli.layers.gates import CarriesGates
from comt_cli.layers.residual.base import State, stream_of

Values = NDArray[np.float32]

NEAR_END = 0.05
"""A value is saturated within this share of the range from either end."""


@dataclass(frozen=True)
class GateValues:
    """`factors[site, kind][layer]` are the values on every token: scalar [T, 1], head [T, heads], channel [T, N].

    Layers count from 1.

    `ranges[site]` is the interval of a site's factors, None for a gate that does not state one.
    """

    pieces: list[str]
    factors: dict[tuple[str, str], dict[int, Values]]
    ranges: dict[str, tuple[float, float] | None]

    def sites(self, kind: str) -> list[str]:
        """The sites that have factors of this kind, `scalar` or `channel`, in the order of the model."""
        return [site for site, known in self.factors if known == kind]


def gate_values(loaded: LoadedText, text: str | None = None) -> GateValues:
    """Run `text` (None: `DEFAULT_TEXT`) through the network and take every gate's factors on every token.

    Raises:
        UserError: the network has no gates, or none that multiply (says what it has), or see `tokens_of`.
    """
    modules = [module for module in loaded.model.modules() if isinstance(module, CarriesGates) and module.gates]
    if not modules:
        raise UserError(f"{loaded.name} has no gates to analyse: it holds {loaded.description}")
    tokens = tokens_of(loaded, text)
    inputs: dict[int, Tensor] = {}

    def keep(number: int, x_BTD: State, _: State) -> None:
        inputs[number] = stream_of(x_BTD)[0]

    watch(loaded, tokens.ids, [(module, partial(keep, number)) for number, module in enumerate(modules)])
    values = GateValues(tokens.pieces, {}, {})
    for number, module in enumerate(modules):
        layer = module.sites[0].layer + 1
        with torch.no_grad():
            factors = module.gate_values(inputs[number])
        for site, by_kind in factors.items():
            values.ranges[site] = module.gate(site).factor_range
            for kind, value in by_kind.items():
                # A gate that does not look at its input has one value for all tokens.
                shape = (len(tokens.pieces), value.shape[-1])
                values.factors.setdefault((site, kind), {})[layer] = value.expand(shape).numpy()
    if not values.factors:
        raise UserError(f"{loaded.name} has gates that multiply nothing: it holds {loaded.description}")
    return values


def scalar_frame(values: GateValues) -> pd.DataFrame:
    """The scalar factors as rows `site, layer, position, token, value`; empty where there are none."""
    rows = [
        (site, layer, position, values.pieces[position], float(value))
        for site in values.sites("scalar")
        for layer, value_T1 in values.factors[site, "scalar"].items()
        for position, value in enumerate(value_T1[:, 0])
    ]
    return pd.DataFrame(rows, columns=["site", "layer", "position", "token", "value"])


def channel_frame(values: GateValues, site: str, max_channels: int) -> pd.DataFrame:
    """The channel factors at `site` as rows `layer, position, token, channel, value`.

    Of more than `max_channels` channels every k-th is taken, k the least that suffices.

    Raises:
        UserError: the site has no channel factors; says which have.
    """
    if (site, "channel") not in values.factors:
        have = ", ".join(values.sites("channel")) or "none"
        raise UserError(f"there are no channel-wise gates at {site}", f"Sites that have them: {have}.")
    frames = []
    for layer, value_TN in values.factors[site, "channel"].items():
        tokens, width = value_TN.shape
        channels = np.arange(0, width, -(-width // max_channels))
        frame = pd.DataFrame(
            {
                "layer": layer,
                "position": np.repeat(np.arange(tokens), len(channels)),
                "token": np.repeat(np.array(values.pieces, dtype=object), len(channels)),
                "channel": np.tile(channels, tokens),
                "value": value_TN[:, channels].ravel(),
            }
        )
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def summary_frame(values: GateValues) -> pd.DataFrame:
    """Mean, spread and saturation of each factor, over all tokens and channels, per layer and module.

    Columns `site, kind, layer, mean, std, p5, p95` (5th and 95th percentile), `saturation` (the share of values within
    5 % of either end of the range) and the range's ends `low, high`; the last three are empty where it is not known.
    """
    rows = []
    for (site, kind), by_layer in values.factors.items():
        low, high = values.ranges[site] or (np.nan, np.nan)
        margin = NEAR_END * (high - low)
        for layer, value in by_layer.items():
            p5, p95 = np.percentile(value, [5, 95])
            outer = ((value < low + margin) | (value > high - margin)).mean() if low < high else np.nan
            rows.append((site, kind, layer, value.mean(), value.std(), p5, p95, outer, low, high))
    columns = ["site", "kind", "layer", "mean", "std", "p5", "p95", "saturation", "low", "high"]
    return pd.DataFrame(rows, columns=columns)
