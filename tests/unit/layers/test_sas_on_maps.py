"""SAS's equations on feature maps, a pixel at a time."""

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
