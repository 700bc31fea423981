"""SAS's Tables 1 and 2: with alpha and beta (and gamma) fixed it is exactly the named architecture, and its equations
on feature maps, a pixel at a time."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from naive import close, dot, normal, shaken, sigmoid
from torch import Tensor, nn

from comt_cli.layers.convolution import EPSILON, MapLayerNorm
from comt_cli.layers.residual.base import ResidualSite
from comt_cli.layers.residual.sas import GatedShare, SelfAdaptiveScaling

LAYER_NORM = partial(MapLayerNorm, over="sample")
B = 0.3
TABLE_1 = {  # of alpha, beta, gamma; x, F = branch(x) and n = LN(x + F)
    "1 LN(x+F)": ({"alpha": 0.0, "beta": 0.0, "gamma": 1.0}, lambda x, F, n: n),
    "2 x+F": ({"alpha": 1.0, "beta": 1.0, "gamma": 0.0}, lambda x, F, n: x + F),
    "3 x+bF": ({"alpha": 1.0, "beta": B, "gamma": 0.0}, lambda x, F, n: x + B * F),
    "4 ax+F": ({"alpha": B, "beta": 1.0, "gamma": 0.0}, lambda x, F, n: B * x + F),
}
TABLE_2 = {
    "1 LN(x+F)": ({"alpha": 0.0, "beta": 0.0}, lambda x, F, n: n),
    "2 F": ({"alpha": 0.0, "beta": 1.0}, lambda x, F, n: F),
    "3 x": ({"alpha": 1.0, "beta": 0.0}, lambda x, F, n: x),
    "4 x+F": ({"alpha": 1.0, "beta": 1.0}, lambda x, F, n: x + F),
    "5 x+bF": ({"alpha": 1.0, "beta": B}, lambda x, F, n: x + B * F),
    "6 ax+F": ({"alpha": B, "beta": 1.0}, lambda x, F, n: B * x + F),
    "7 Highway and Transformer": (
        {"alpha": 1 - B, "beta": B},
        lambda x, F, n: (1 - B) * x + B * F + B * (1 - B) * n,
    ),
}


@pytest.mark.parametrize(("gamma", "table"), [("free", TABLE_1), ("product", TABLE_2)])
def test_special_cases(gamma, table):
    """The output; autograd follows it."""
    x, F = (normal(2, 2, 3, 3, seed=seed) for seed in range(2))
    for fixed, architecture in table.values():
        sas = shaken(SelfAdaptiveScaling(site(3), gamma=gamma, norm=LAYER_NORM))
        for name, value in fixed.items():
            getattr(sas, f"{name}_gate").forward = lambda both, value=value: both.new_tensor(value)
        close(sas(x, lambda _: F), architecture(x, F, sas.norm(x + F)))


def site(width: int) -> ResidualSite:
    return ResidualSite(width, "blocks", 0, 4, 0, 4, "map", nn.Identity)


def naive_gate(gate: nn.Module, both: Tensor) -> float:
    """Eq. 2 followed by a sigmoid; Table 6's single layer."""
    hidden = both
    if gate.hidden is not None:
        weights, biases = parts(gate.hidden)
        hidden = both.new_tensor([math.tanh(dot(row, both) + b) for row, b in zip(weights, biases, strict=True)])
    (row,), (b,) = parts(gate.output)
    return sigmoid(dot(row, hidden) + b)


def parts(affine: nn.Module) -> tuple[Tensor, list[float]]:
    return affine.weight.double(), affine.bias.tolist()


def layer_normed(values: list[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return [(value - mean) / math.sqrt(variance + EPSILON) for value in values]


def naive_layer_norm(norm: MapLayerNorm, x_HWC: Tensor) -> Tensor:
    groups = x_HWC.flatten()[None] if norm.over == "sample" else x_HWC.flatten(0, 1)
    n = torch.tensor([layer_normed(group.tolist()) for group in groups], dtype=torch.float64).view_as(x_HWC)
    return norm.weight * n + norm.bias


@pytest.mark.parametrize(
    ("gate", "reads", "over", "gamma"),
    [
        ("two-layer", "pooled", "sample", "product"),
        ("two-layer", "pixel", "pixel", "free"),
        ("single-layer", "pixel", "sample", "product"),
        ("single-layer", "pooled", "pixel", "free"),
    ],
)
def test_the_readings_of_sas_on_maps(gate, reads, over, gamma):
    norm = partial(MapLayerNorm, over=over)
    connection = shaken(SelfAdaptiveScaling(site(3), gate=gate, reads=reads, norm=norm, gamma=gamma))
    x_BHWC, F_BHWC = normal(2, 2, 3, 3), normal(2, 2, 3, 3, seed=1)
    y_BHWC = connection(x_BHWC, lambda _: F_BHWC)
    for b in range(2):
        x, F = x_BHWC[b], F_BHWC[b]
        n = naive_layer_norm(connection.norm, x + F)
        for i in range(2):
            for j in range(3):
                read = (x[i, j], F[i, j]) if reads == "pixel" else (x.flatten(0, 1).mean(0), F.flatten(0, 1).mean(0))
                both = torch.cat(read)
                alpha, beta = naive_gate(connection.alpha_gate, both), naive_gate(connection.beta_gate, both)
                c = (1 - alpha) * (1 - beta) if gamma == "product" else naive_gate(connection.gamma_gate, both)
                close(y_BHWC[b, i, j], alpha * x[i, j] + beta * F[i, j] + c * n[i, j])


@pytest.mark.parametrize("gate", ["two-layer", "single-layer"])
@pytest.mark.parametrize("reads", ["pooled", "pixel"])
def test_one_scaling_gate(gate, reads):
    connection = shaken(GatedShare(site(3), gate=gate, reads=reads))
    x_BHWC, F_BHWC = normal(2, 2, 3, 3), normal(2, 2, 3, 3, seed=1)
    y_BHWC = connection(x_BHWC, lambda _: F_BHWC)
    for b in range(2):
        x, F = x_BHWC[b], F_BHWC[b]
        for i in range(2):
            for j in range(3):
                read = (x[i, j], F[i, j]) if reads == "pixel" else (x.flatten(0, 1).mean(0), F.flatten(0, 1).mean(0))
                g = naive_gate(connection.gate, torch.cat(read))
                close(y_BHWC[b, i, j], g * F[i, j] + (1 - g) * x[i, j])
