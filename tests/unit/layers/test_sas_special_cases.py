"""SAS's Tables 1 and 2: with alpha and beta (and gamma) fixed it is exactly the named architecture, and its equations
on feature maps, a pixel at a time."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from naive import close, dot, normal, shaken, sigmoid
from same_bits import Reason, assert_same_bits
from torch import Tensor, nn

from comt_cli.layers.convolution import EPSILON
from comt_cli.layers.initialise import Initialised
from comt_cli.layers.map_norms import MapBatchNorm, MapLayerNorm
from comt_cli.layers.residual.base import ResidualConnection, ResidualSite
from comt_cli.layers.residual.channel_gates import Highway
from comt_cli.layers.residual.norm_placement import PostNorm, PreNorm
from comt_cli.layers.residual.sas import GatedShare, SelfAdaptiveScaling
from comt_cli.layers.residual.scaled import ScaledBranch
from comt_cli.methods.base import Wiring
from comt_cli.models.build import empty_network, materialise
from comt_cli.models.resnet import ResNet
from comt_cli.tasks.settings.resnet import ResNetSettings

LAYER_NORM = partial(MapLayerNorm, over="sample")
TINY = ResNetSettings(size="preact-resnet110", width=4, blocks=(2, 1))
IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
B = 0.3


class Named(ResidualConnection):
    """An architecture of the tables that has no module of its own here, by its formula."""

    def __init__(self, site: ResidualSite, formula) -> None:
        super().__init__(site)
        self.norm = LAYER_NORM(site.width)
        self.formula = formula

    def forward(self, x_BTD: Tensor, branch) -> Tensor:
        F_BTD = branch(x_BTD)
        return self.formula(x_BTD, F_BTD, self.norm(x_BTD + F_BTD))


def named(formula):
    return partial(Named, formula=formula)


def transformer(site: ResidualSite) -> ResidualConnection:
    """Post-LN, the connection of language models, with the norm of maps."""
    return PostNorm(replace(site, norm=partial(LAYER_NORM, site.width)))


TABLE_1 = {
    "1 LN(x+F)": ({"alpha": 0.0, "beta": 0.0, "gamma": 1.0}, transformer),
    "2 x+F": ({"alpha": 1.0, "beta": 1.0, "gamma": 0.0}, PreNorm),
    "3 x+bF": ({"alpha": 1.0, "beta": B, "gamma": 0.0}, partial(ScaledBranch, scale=B)),
    "4 ax+F": ({"alpha": B, "beta": 1.0, "gamma": 0.0}, named(lambda x, F, n: B * x + F)),
}
TABLE_2 = {
    "1 LN(x+F)": ({"alpha": 0.0, "beta": 0.0}, transformer),
    "2 F": ({"alpha": 0.0, "beta": 1.0}, named(lambda x, F, n: F)),
    "3 x": ({"alpha": 1.0, "beta": 0.0}, named(lambda x, F, n: x)),
    "4 x+F": ({"alpha": 1.0, "beta": 1.0}, PreNorm),
    "5 x+bF": ({"alpha": 1.0, "beta": B}, partial(ScaledBranch, scale=B)),
    "6 ax+F": ({"alpha": B, "beta": 1.0}, named(lambda x, F, n: B * x + F)),
    "7 Highway and Transformer": (
        {"alpha": 1 - B, "beta": B},
        named(lambda x, F, n: (1 - B) * x + B * F + B * (1 - B) * n),
    ),
}
CASES = [(f"Table 1: {name}", "free", *case) for name, case in TABLE_1.items()] + [
    (f"Table 2: {name}", "product", *case) for name, case in TABLE_2.items()
]


def network(residual) -> ResNet:
    model = empty_network(TINY, Wiring(residual), classes=3)
    materialise(model, torch.device("cpu"), 1)
    return model


@pytest.mark.parametrize(("gamma", "fixed", "architecture"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_special_cases(gamma, fixed, architecture):
    """Whole networks, from one seed: the output and every gradient that both have. To the last bits of fp32: fixed
    numbers multiply in another order (0.7 and 0.3 are no binary fractions); with zeros and ones nothing is rounded."""
    sas = network(partial(SelfAdaptiveScaling, gamma=gamma, norm=LAYER_NORM, fixed=fixed))
    other = network(architecture)
    ours, theirs = sas(IMAGES), other(IMAGES)
    exact = set(fixed.values()) <= {0.0, 1.0}
    if exact:
        assert_same_bits(ours, theirs, Reason.IDENTITY)
    else:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in sas.named_parameters()}
    assert len(gradients) > 10
    assert all(isinstance(module, Initialised) for module in sas.modules() if list(module.parameters(recurse=False)))
    assert not any("gate" in name for name in gradients), "a fixed share has no gate"
    for name, parameter in other.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=1e-5, msg=name)


def site(width: int) -> ResidualSite:
    return ResidualSite(width, "blocks", 0, 4, 0, 4, "map", nn.Identity)


def naive_gate(gate: nn.Module, both: Tensor) -> float:
    """Eq. 2 followed by a sigmoid; Table 6's single layer."""
    hidden = both
    if hasattr(gate, "hidden"):
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


@pytest.mark.parametrize("gate", ["two-layer", "single-layer"])
@pytest.mark.parametrize("reads", ["pooled", "pixel"])
@pytest.mark.parametrize("over", ["sample", "pixel"])
@pytest.mark.parametrize("gamma", ["product", "free"])
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


def test_the_transform_gate_of_every_pixel_is_highway():
    x_BHWC, F_BHWC = normal(2, 2, 3, 3), normal(2, 2, 3, 3, seed=1)
    ours = shaken(GatedShare(site(3), gate="transform", reads="pixel"))
    highway = shaken(Highway(site(3)))
    close(ours(x_BHWC, lambda _: F_BHWC), highway(x_BHWC, lambda _: F_BHWC))
    pooled = shaken(GatedShare(site(3), gate="transform", reads="pooled"))
    T_B11C = torch.sigmoid(pooled.gate(x_BHWC.mean(dim=(1, 2), keepdim=True)))
    close(pooled(x_BHWC, lambda _: F_BHWC), T_B11C * F_BHWC + (1 - T_B11C) * x_BHWC)


def test_batch_norm_of_maps_is_that_of_channels():
    norm, theirs = shaken(MapBatchNorm(3)), nn.BatchNorm2d(3).double()
    with torch.no_grad():
        theirs.weight.copy_(norm.weight)
        theirs.bias.copy_(norm.bias)
    x_BHWC = normal(4, 2, 3, 3)
    close(norm(x_BHWC), theirs(x_BHWC.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))
