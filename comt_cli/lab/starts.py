"""The start of a small network of every method, and what the first updates change."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.analysis.figures.mixing import DISPERSION, READ_OUT, mixtures
from comt_cli.analysis.figures.residual_shares import shares_of
from comt_cli.files import read_csv
from comt_cli.layers.gates import Gate
from comt_cli.layers.initialise import Draw
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.layers.residual.scaled import FollowsTraining
from comt_cli.methods import in_words, method_from, methods
from comt_cli.models.base import Model
from comt_cli.models.build import empty_network, materialise
from comt_cli.models.flops import parameter_count
from comt_cli.models.recorded import recorded
from comt_cli.recipe.settings import NetworkSettings
from comt_cli.tasks.settings.images import ResNetSettings
from comt_cli.tasks.settings.language import ModelSettings

# With a negligible epsilon: some models have a stream of Pre-LN's direction and another size.
SETTINGS = ModelSettings(size="tiny", width=64, ffn_width=176, layers=4, heads=4, norm_eps=1e-12)
VOCABULARY, UPDATES, RATE = 256, 20, 1e-3
NOTHING = 1e-9
"""A gradient's norm over that of all gradients, below which it is rounding error or the effect of the norms' epsilon on
a zero gradient (1e-11): Adam takes steps for it too, so that movement alone is no evidence."""
LEAST_APART, LEAST_MOVED = 5e-3, 1e-4
"""The least |H - mean| / |H| of streams that differ, and the least change of a mixture that has learned something."""
PUBLISHED = {row["method"]: row["published"] for row in read_csv(Path(__file__).with_name("published.csv"))}
"""The start of a method's model according to its paper or its public code, by the method's text."""
_PLACE = re.compile(r"^blocks\.\d+\.(?:\w*connection\.|.*\bgates\.\w+\.|.*\bgate\.)?|\.value$")
"""What a parameter's name says beyond its name inside a residual connection or gate."""


class Trial(NamedTuple):
    """Networks to compare with the `plain` method's, an input and its targets (-100: none)."""

    plain: str
    settings: NetworkSettings
    dimensions: Mapping[str, int]
    x: Tensor
    targets: Tensor

    def loss(self, logits: Tensor) -> Tensor:
        """Cross-entropy of logits, [..., classes]."""
        return F.cross_entropy(logits.flatten(0, -2), self.targets.flatten())


def starts(chosen: Sequence[Mapping[str, Any]], seed: int) -> dict[str, pd.DataFrame]:
    """`start`, one row for each of these methods, its name and its options, as a language model if it can be one, else
    as a ResNet; and `parameters`, one row for each of their new parameters. In fp64, with equal draws for shared
    parameters; the page explains the columns. NaN and "" mean that there is no such value."""
    draw = torch.Generator().manual_seed(seed)
    tokens_BT = torch.randint(VOCABULARY, (4, 32), generator=draw)
    images_BCHW = torch.randn(16, 3, 16, 16, generator=draw, dtype=torch.float64)
    small, next_BT = (
        ResNetSettings(size="resnet18", width=16, blocks=(2, 2)),
        F.pad(tokens_BT[:, 1:], (0, 1), value=-100),
    )
    language = Trial("pre-ln", SETTINGS, {"vocabulary": VOCABULARY}, tokens_BT, next_BT)
    images = Trial("addition", small, {"classes": 10}, images_BCHW, torch.randint(10, (16,), generator=draw))
    measured = [_measured(language if each["name"] in methods("train-lm") else images, each, seed) for each in chosen]
    parameters = [{"method": row["method"], **line} for row, lines in measured for line in lines]
    return {"start": pd.DataFrame([row for row, _ in measured]), "parameters": pd.DataFrame(parameters)}


def _measured(trial: Trial, method: Mapping[str, Any], seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    @torch.no_grad()
    def built(method: Mapping[str, Any], known: Mapping[str, object] = {}) -> tuple[Model, Tensor]:
        """With `known` parameters, matrices and biases beyond them start as in a model-wide initialisation: N(0,
        0.02^2) and 0. Matrices that start so anyway keep their values."""
        model = empty_network(trial.settings, method_from(method).wiring(), **trial.dimensions)
        materialise(model, torch.device("cpu"), seed)
        for key, part in model.named_parameters() if known else ():
            path, _, name = key.rpartition(".")
            if key not in known and (part.ndim > 1 or name == "bias") and name != "value":
                Draw(seed, path).normal_(part, name, 0.02 * (part.ndim > 1))
        return model, model.double()(trial.x)

    (plain, expected), (model, found) = built({"name": trial.plain}), built(method)
    shapes = {name: part.shape for name, part in plain.named_parameters()}
    own = {key: part for key, part in model.named_parameters() if shapes.get(key) != part.shape}
    before, groups = {key: part.detach().clone() for key, part in own.items()}, dict[str, set[str]]()
    for key in own:
        groups.setdefault(_PLACE.sub("", key), set()).add(key)
    dispersion, weights = _mixtures(trial, model)
    factors = {kind: _in_words(tensors) for kind, tensors in (_factors(trial, model) | weights).items()}
    first, never = _train(trial, model, own)
    trained = {key: part.detach().clone() for key, part in own.items()}

    @torch.no_grad()
    def effect(keys: set[str]) -> float:
        after = model(trial.x)
        model.load_state_dict({key: before[key] for key in keys}, strict=False)
        apart = _apart(model(trial.x), after)
        model.load_state_dict({key: trained[key] for key in keys}, strict=False)
        return apart

    dispersion_after, weights_after = _mixtures(trial, model)
    moved = {
        kind: max((new - old).abs().max().item() for new, old in zip(weights_after[kind], olds, strict=True))
        for kind, olds in sorted(weights.items())
    }
    asleep = [f"{len(never)} without gradient"] if never else []
    asleep += ["streams"] if dispersion_after < LEAST_APART else []
    asleep += [kind for kind, distance in moved.items() if distance < LEAST_MOVED]
    row: dict[str, Any] = {"method": in_words(method), "published": PUBLISHED.get(in_words(method), "")}
    row |= {"parameters": parameter_count(model) - parameter_count(plain), "difference": _apart(found, expected)}
    row["overwritten"] = _apart(built(method, shapes)[1], found)
    row |= {"factors": ", ".join(map(" ".join, factors.items())), "loss": trial.loss(found).item(), "own": len(own)}
    row |= {"without_gradient": len(first), "never": len(never), "effect": effect({*own}) if own else float("nan")}
    row |= {"dispersion_start": dispersion, "dispersion": dispersion_after}
    row["mixing_moved"] = ", ".join(f"{kind} {distance:.2g}" for kind, distance in moved.items())
    lines = []
    for name, keys in groups.items():
        lines.append({"parameter": name, "tensors": len(keys), "start": _in_words([before[key] for key in keys])})
        lines[-1] |= {"without_gradient": len(first & keys), "never": len(never & keys), "effect": effect(keys)}
    return row | {"asleep": ", ".join(asleep)}, lines


def _apart(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def _factors(trial: Trial, model: Model) -> dict[str, list[Tensor]]:
    """Values of all gates by kind, and learned weights of skip path and branch by name."""
    found: dict[str, list[Tensor]] = {}
    gates = [module for module in model.modules() if isinstance(module, Gate)]
    connections = [module for module in model.modules() if isinstance(module, ResidualConnection)]
    shares = [share for connection in connections for share in shares_of(connection).items()]
    inner = {part for _, (parts, _) in shares for part in parts}
    with torch.no_grad(), recorded(gates, "scaled") as calls, recorded(inner) as outputs:
        model(trial.x)
        for gate in gates:
            for kind, values in gate.values(calls[gate][0][1]).items():
                found.setdefault(f"{kind} gate", []).append(values)
        for name, (parts, factor) in shares:
            found.setdefault(name, []).append(factor(*(outputs[part][1] for part in parts)))
    return found


def _in_words(tensors: Sequence[Tensor]) -> str:
    """The values if they are at most two (to a hundredth of the largest), else their mean and standard deviation."""
    numbers = torch.cat([each.detach().flatten() for each in tensors])
    largest, std, mean = numbers.abs().max().item(), numbers.std(correction=0).item(), numbers.mean().item()
    values = {round(number / (largest or 1), 2): number + 0.0 for number in sorted(numbers.tolist())}
    if len(values) <= 2:
        return " or ".join(f"{value:.3g}" for value in values.values())
    return f"{mean if abs(mean) > std / 5 else 0:.2g} ± {std:.2g}"


def _train(trial: Trial, model: Model, own: Mapping[str, nn.Parameter]) -> tuple[set[str], set[str]]:
    """Adam for `UPDATES` on one batch; the names of `own` without a gradient in the first update, and in all."""
    optimizer, without = torch.optim.Adam(model.parameters(), RATE), list[set[str]]()
    for update in range(UPDATES):
        for module in model.modules():
            if isinstance(module, FollowsTraining):
                module.at_update(update)
        optimizer.zero_grad()
        torch.autograd.backward(trial.loss(model(trial.x)))
        least = NOTHING * nn.utils.get_total_norm([each.grad for each in model.parameters() if each.grad is not None])
        without.append({key for key, part in own.items() if part.grad is None or part.grad.norm() <= least})
        optimizer.step()
    return without[0], set.intersection(*without)


def _mixtures(trial: Trial, model: Model) -> tuple[float, dict[str, list[Tensor]]]:
    dispersion, weights = float("nan"), dict[str, list[Tensor]]()
    with torch.no_grad():
        places = mixtures(model, lambda: model(trial.x)) if trial.settings is SETTINGS else []
    for place in places:
        for kind, weight in place.weights.items():
            if kind == DISPERSION:
                dispersion = weight.mean().item()
            else:
                weights.setdefault(f"{READ_OUT} {kind}" if place.part == READ_OUT else kind, []).append(weight)
    return dispersion, weights
