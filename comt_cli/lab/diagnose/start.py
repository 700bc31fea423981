"""How language models of each method start, beside what their papers say of it, and whether what a method learns moves.

A method whose parameters get no gradient, or whose streams stay equal, has not been measured by any table: it is dead.
Shapes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.analysis.figures.mixing import DISPERSION, READ_OUT, mixtures
from comt_cli.layers.residual.scaled import FollowsTraining
from comt_cli.methods import in_words, method_from
from comt_cli.models.build import empty_network, materialise
from comt_cli.models.flops import parameter_count
from comt_cli.models.llama import Llama
from comt_cli.tasks.settings.llama import ModelSettings

SETTINGS = ModelSettings(size="tiny", width=64, ffn_width=176, layers=4, heads=4, norm_eps=1e-12)
"""With an epsilon that is nothing: some models have a stream of Pre-LN's direction and another size."""
VOCABULARY, SAMPLES, TOKENS = 256, 4, 32
UPDATES, RATE = 20, 1e-3
"""Of Adam on one batch: enough to tell what learns from what never will."""
NOTHING = 1e-9
"""A gradient's norm over that of all gradients, at which it is no more than rounding and what the norms' epsilon leaves
of a gradient that is zero (1e-11): Adam makes steps of that too, so that movement by itself says nothing."""

LEAST_APART = 5e-3
"""|H - mean| / |H| below which streams are one: nothing that mixes them can have an effect."""
LEAST_MOVED = 1e-4
"""How far a weight of a mixture has moved at least, of those of one kind, for the mixture to have learnt something."""


def published() -> dict[str, str]:
    """What a method's paper, or its public code, says its model is at the start, by the method in words."""
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as lines:
        return {row["method"]: row["published"] for row in csv.DictReader(lines)}


def starts(methods: Sequence[Mapping[str, Any]], seed: int) -> pd.DataFrame:
    """One row for each of these methods for language models, each its name and its options, in fp64, with the same
    draws where they share parameters:

    `method`, in words; `published` (`published.csv`); `parameters`, beyond Pre-LN's; `difference`, |logits -
    Pre-LN's| over the norm of Pre-LN's, and `loss`, at the start; of the `own` parameters (tensors that Pre-LN has
    not, or has in another shape) how many are `without_gradient` in the first update, and `never` have one in all
    `UPDATES`;
    `dispersion_start` and `dispersion`, |H - mean| / |H| of the streams that the last residual add is handed
    (`mixing.DISPERSION`), then and after; `mixing_moved`, how far the weights of mixtures have moved, the largest of
    each kind: `mix 0.01, read 0.2`;
    `asleep`, what a short training cannot say anything of: tensors without a gradient, streams that are one, mixtures
    that are where they started. NaN, and "": there is no such thing.
    """
    tokens_BT = torch.randint(VOCABULARY, (SAMPLES, TOKENS), generator=torch.Generator().manual_seed(seed))
    plain = _model({"name": "pre-ln"}, seed)
    shapes = {name: parameter.shape for name, parameter in plain.named_parameters()}
    with torch.no_grad():
        expected_BTV = plain(tokens_BT)
    rows, known = [], published()
    for method in methods:
        name, model = in_words(method), _model(method, seed)
        own = {key: part for key, part in model.named_parameters() if shapes.get(key) != part.shape}
        with torch.no_grad():
            found_BTV = model(tokens_BT)
        dispersion, weights = _mixtures(model, tokens_BT)
        first, never = _train(model, tokens_BT, own)
        dispersion_after, weights_after = _mixtures(model, tokens_BT)
        moved = {
            kind: max((new - old).abs().max().item() for new, old in zip(weights_after[kind], before, strict=True))
            for kind, before in weights.items()
        }
        asleep = [f"{never} without gradient"] if never else []
        asleep += ["streams"] if dispersion_after < LEAST_APART else []
        asleep += sorted(kind for kind, distance in moved.items() if distance < LEAST_MOVED)
        row: dict[str, Any] = {"method": name, "published": known.get(name, "")}
        row["parameters"] = parameter_count(model) - parameter_count(plain)
        row["difference"] = ((found_BTV - expected_BTV).norm() / expected_BTV.norm()).item()
        row |= {"loss": _loss(found_BTV, tokens_BT).item(), "own": len(own), "without_gradient": first, "never": never}
        row |= {"dispersion_start": dispersion, "dispersion": dispersion_after}
        row["mixing_moved"] = ", ".join(f"{kind} {distance:.2g}" for kind, distance in sorted(moved.items()))
        rows.append(row | {"asleep": ", ".join(asleep)})
    return pd.DataFrame(rows)


def _model(method: Mapping[str, Any], seed: int) -> Llama:
    model = empty_network(SETTINGS, method_from(method).wiring(), vocabulary=VOCABULARY)
    materialise(model, torch.device("cpu"), seed)
    return model.double()


def _loss(logits_BTV: Tensor, tokens_BT: Tensor) -> Tensor:
    return F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1), tokens_BT[:, 1:].flatten())


def _train(model: Llama, tokens_BT: Tensor, own: dict[str, nn.Parameter]) -> tuple[int, int]:
    """Adam for `UPDATES` on one batch; how many of `own` had no gradient in the first update, and in none."""
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    followers = [module for module in model.modules() if isinstance(module, FollowsTraining)]
    without = []
    for update in range(UPDATES):
        for follower in followers:
            follower.at_update(update)
        optimizer.zero_grad()
        torch.autograd.backward(_loss(model(tokens_BT), tokens_BT))
        least = least_gradient(model)
        without.append({key for key, part in own.items() if part.grad is None or part.grad.norm() <= least})
        optimizer.step()
    return len(without[0]), len(set.intersection(*without))


def least_gradient(model: nn.Module) -> Tensor:
    """The norm up to which a gradient of the model is `NOTHING`."""
    total: Tensor = nn.utils.get_total_norm([part.grad for part in model.parameters() if part.grad is not None])
    return NOTHING * total


def _mixtures(model: Llama, tokens_BT: Tensor) -> tuple[float, dict[str, list[Tensor]]]:
    """The dispersion of the streams that the last residual add is handed, the mean over the tokens, and the weights of
    all mixtures by their kind, those of read-outs apart."""
    dispersion, weights = float("nan"), dict[str, list[Tensor]]()
    with torch.no_grad():
        places = mixtures(model, lambda: model(tokens_BT))
    for place in places:
        for kind, weight in place.weights.items():
            if kind == DISPERSION:
                dispersion = weight.mean().item()
            else:
                weights.setdefault(f"{READ_OUT} {kind}" if place.part == READ_OUT else kind, []).append(weight)
    return dispersion, weights
