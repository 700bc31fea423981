"""What the gates of a network do on a text, a sentence and its translation, or an image and its caption: their values,
and what they amount to per layer and module.

Shapes: L layers, T tokens, N channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from comt_cli.analysis.text import Observation, observed_text
from comt_cli.analysis.watch import Observer, watch
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import Loaded, LoadedText
from comt_cli.layers.gates import CarriesGates, EvaluatorAdjuster
from comt_cli.layers.residual.base import State, stream_of
from comt_cli.methods.base import PROJECTIONS

Values = NDArray[np.float32]

NEAR_END = 0.05
"""A value is saturated within this share of the range from either end."""


class Place(NamedTuple):
    """A site of a model: its name, the stack of blocks and the branch of a block that it is in (`Site.stack`,
    `Site.part`), and the name of the sequence whose tokens its gate reads."""

    site: str
    stack: str = ""
    part: str = ""
    text: str = ""


@dataclass(frozen=True)
class GateValues:
    """`factors[place, kind][layer]` are the values on every token: scalar [T, 1], head [T, heads], channel [T, N].

    Layers count from 1. Of an Evaluator-Adjuster Unit, which has no factors, the kind `evaluator` [T, N] is e.

    `texts` has the names of the tokens of every sequence; where there are several, frames say of a value not only the
    site, but the whole place. `ranges[place]` is the interval of a site's factors, None for a gate that does not state
    one.
    """

    texts: dict[str, list[str]]
    factors: dict[tuple[Place, str], dict[int, Values]]
    ranges: dict[Place, tuple[float, float] | None]

    def places(self, kind: str) -> list[Place]:
        """The places that have factors of this kind, `scalar` or `channel`, in the order of the model."""
        return [place for place, known in self.factors if known == kind]

    def sites(self, kind: str) -> list[str]:
        """The sites of these places."""
        return list(dict.fromkeys(place.site for place in self.places(kind)))

    def keys(self, place: Place) -> dict[str, str]:
        """What frames say of a place, by column."""
        whole = {"stack": place.stack, "part": place.part, "text": place.text, "site": place.site}
        return whole if len(self.texts) > 1 else {"site": place.site}


def has_gates(loaded: Loaded) -> bool:
    """Whether a network of tokens has gates at any site."""
    return bool(_carriers(loaded))


def _carriers(loaded: Loaded) -> list[CarriesGates]:
    return [module for module in loaded.model.modules() if isinstance(module, CarriesGates) and module.gates]


def gate_values(loaded: LoadedText, text: str | None = None) -> GateValues:
    """`observed_gates` of a model of one text on `text` (None: `DEFAULT_TEXT`). Raises as that, and as `tokens_of`."""
    return observed_gates(loaded, observed_text(loaded, text))


def observed_gates(loaded: Loaded, on: Observation) -> GateValues:
    """Run the network once and take every gate's factors on every token that it reads.

    Raises:
        UserError: the network has no gates, or none that a figure can show (says what it has); see `watch`.
    """
    modules = _carriers(loaded)
    if not modules:
        raise UserError(f"{loaded.name} has no gates to analyse: it holds {loaded.description}")
    kept: dict[tuple[int, str], Tensor] = {}

    def keep(number: int, name: str, x_BTD: State, _: State) -> None:
        kept[number, name] = stream_of(x_BTD)[0]

    observers: list[tuple[nn.Module, Observer]] = []
    for number, module in enumerate(modules):
        observers.append((module, partial(keep, number, "")))
        observers += [
            (gate, partial(keep, number, name))
            for name, gate in module.gates.items()
            if isinstance(gate, EvaluatorAdjuster)
        ]
    watch(loaded, on.inputs, observers)
    found: dict[tuple[Place, str], dict[int, Values]] = {}
    ranges: dict[Place, tuple[float, float] | None] = {}
    for number, module in enumerate(modules):
        block, text = module.sites[0], on.read_by(module)
        with torch.no_grad():
            factors = module.gate_values(kept[number, ""])
            for name, gate in module.gates.items():
                if isinstance(gate, EvaluatorAdjuster):
                    factors[name] = {"evaluator": gate.evaluation(kept[number, name])}
        for site, by_kind in factors.items():
            place = Place(site, block.stack, block.part, text)
            ranges[place] = (0.0, 1.0) if "evaluator" in by_kind else module.gate(site).factor_range
            for kind, value in by_kind.items():
                # A gate that does not look at its input has one value for all tokens.
                shape = (len(on.sequences[text].pieces), value.shape[-1])
                found.setdefault((place, kind), {})[block.layer + 1] = value.expand(shape).numpy()
    if not found:
        raise UserError(f"{loaded.name} has gates that multiply nothing: it holds {loaded.description}")
    texts = {name: tokens.pieces for name, tokens in on.sequences.items()}
    return GateValues(texts, _in_order(found), ranges)


def _in_order(found: dict[tuple[Place, str], dict[int, Values]]) -> dict[tuple[Place, str], dict[int, Values]]:
    """Branch by branch, and in each the projections as they are usually listed, before what else it has."""
    branches = list(dict.fromkeys((place.stack, place.part) for place, _ in found))

    def rank(key: tuple[Place, str]) -> tuple[int, int]:
        place, _ = key
        within = PROJECTIONS.index(place.site) if place.site in PROJECTIONS else len(PROJECTIONS)
        return branches.index((place.stack, place.part)), within

    return {key: found[key] for key in sorted(found, key=rank)}


def scalar_frame(values: GateValues) -> pd.DataFrame:
    """The scalar factors as rows `site, layer, position, token, value`, with `stack, part, text` before these where
    there are several texts; empty where there are no such factors."""
    rows = [
        {
            **values.keys(place),
            "layer": layer,
            "position": position,
            "token": values.texts[place.text][position],
            "value": float(value),
        }
        for place in values.places("scalar")
        for layer, value_T1 in values.factors[place, "scalar"].items()
        for position, value in enumerate(value_T1[:, 0])
    ]
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else ["site", "layer", "position", "token", "value"])


def channel_frame(values: GateValues, site: str, max_channels: int) -> pd.DataFrame:
    """The channel factors at `site` as rows `layer, position, token, channel, value`, with `stack, part, text` before
    these where there are several texts.

    Of more than `max_channels` channels every k-th is taken, k the least that suffices.

    Raises:
        UserError: the site has no channel factors; says which have.
    """
    if site not in values.sites("channel"):
        have = ", ".join(values.sites("channel")) or "none"
        raise UserError(f"there are no channel-wise gates at {site}", f"Sites that have them: {have}.")
    frames = []
    for place in (place for place in values.places("channel") if place.site == site):
        keys = {key: name for key, name in values.keys(place).items() if key != "site"}
        for layer, value_TN in values.factors[place, "channel"].items():
            tokens, width = value_TN.shape
            channels = np.arange(0, width, -(-width // max_channels))
            frame = pd.DataFrame(
                {
                    **keys,
                    "layer": layer,
                    "position": np.repeat(np.arange(tokens), len(channels)),
                    "token": np.repeat(np.array(values.texts[place.text], dtype=object), len(channels)),
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
    Where there are several texts, `stack, part, text` come first.
    """
    rows = []
    for (place, kind), by_layer in values.factors.items():
        low, high = values.ranges[place] or (np.nan, np.nan)
        margin = NEAR_END * (high - low)
        for layer, value in by_layer.items():
            p5, p95 = np.percentile(value, [5, 95])
            outer = ((value < low + margin) | (value > high - margin)).mean() if low < high else np.nan
            measures = {"mean": value.mean(), "std": value.std(), "p5": p5, "p95": p95, "saturation": outer}
            rows.append({**values.keys(place), "kind": kind, "layer": layer, **measures, "low": low, "high": high})
    return pd.DataFrame(rows)
