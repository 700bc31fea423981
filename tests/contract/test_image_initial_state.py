"""How every method of image classifiers starts, and that it survives the model-wide initialisation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from image_method_cases import IMAGES, built_resnet, every_image_method
from torch import Tensor, nn

from comt_cli.layers.convolution import BatchNorm, Convolution, PixelGate, WindowGate
from comt_cli.layers.learned import Affine, Classifier, Constant
from comt_cli.layers.map_norms import MapLayerNorm
from comt_cli.models.resnet import ResNet
from comt_cli.tasks.settings.resnet import ResNetSettings

MEDIUM = ResNetSettings(size="resnet18", width=32, blocks=(1, 2))


def std(tensor: Tensor) -> float:
    return tensor.detach().double().std().item()


def is_uniform(tensor: Tensor, bound: float) -> None:
    """Within the bound; and where there are draws enough to tell, reaching near it and spread as a uniform one is."""
    assert tensor.abs().max() <= bound
    if tensor.numel() >= 500:
        assert tensor.abs().max() > 0.98 * bound
        assert std(tensor) == pytest.approx(bound / math.sqrt(3), rel=0.1)


def convolution_starts(part: Convolution) -> None:
    """He's, by the outputs; the stem's 864 draws have a standard error of 2.4 %, the others' of 1.6 % and less."""
    d_out, _, window, _ = part.weight.shape
    assert std(part.weight) == pytest.approx(math.sqrt(2 / (d_out * window * window)), rel=0.08)


def norm_starts(part: BatchNorm | MapLayerNorm) -> None:
    assert part.weight is None or (part.weight == 1).all()
    assert (part.bias == 0).all()
    if isinstance(part, BatchNorm):
        assert (part.running_mean == 0).all()
        assert (part.running_var == 1).all()


def window_starts(part: WindowGate) -> None:
    is_uniform(part.filters, 1 / math.sqrt(part.filters[0].numel()))
    is_uniform(part.w, 1 / math.sqrt(len(part.filters)))


def pixel_starts(part: PixelGate) -> None:
    is_uniform(part.A, 1 / math.sqrt(part.A.shape[1]))
    is_uniform(part.b, 1 / math.sqrt(part.b.shape[1]))


def classifier_starts(part: Classifier) -> None:
    is_uniform(part.weight, 1 / math.sqrt(part.weight.shape[1]))
    is_uniform(part.bias, 1 / math.sqrt(part.weight.shape[1]))


def affine_starts(part: Affine) -> None:
    """Biases are the methods' own: `test_the_documented_biases`. The smallest matrix has 64 draws: 9 %."""
    assert std(part.weight) == pytest.approx(0.02, rel=0.35)
    assert part.bias.unique().numel() == 1


STARTS = {
    Convolution: convolution_starts,
    BatchNorm: norm_starts,
    MapLayerNorm: norm_starts,
    WindowGate: window_starts,
    PixelGate: pixel_starts,
    Classifier: classifier_starts,
    Affine: affine_starts,
    Constant: lambda part: None,  # the methods' own numbers, below
}


@every_image_method
def test_the_initial_state_is_the_documented_one_and_survives(options):
    seen = 0
    for path, module in built_resnet(options, MEDIUM).named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            kinds = [kind for kind in STARTS if isinstance(module, kind)]
            assert kinds, f"how {path}, a {type(module).__name__}, starts is not written down in STARTS"
            STARTS[kinds[0]](module)
            seen += 1
    assert seen >= 2 * (2 * 3 + 1 + 1) + 1  # the network's own convolutions and norms, and the classifier


def connections(name: str, **options) -> list[nn.Module]:
    return [block.connection for block in built_resnet({"name": name, **options}, MEDIUM).blocks]


def test_the_documented_biases():
    for connection in connections("sas-resnet"):
        assert (connection.alpha_gate.output.bias == 3).all()
        assert (connection.beta_gate.output.bias == -3).all()
        assert (connection.alpha_gate.hidden.bias == 0).all()
        assert connection.gamma_gate is None
    for connection in connections("sas-resnet", gamma="free", gamma_bias=-1.5):
        assert (connection.gamma_gate.output.bias == -1.5).all()
    for connection in connections("scaling-gate"):
        assert (connection.gate.output.bias == -3).all()
    for connection in connections("scaling-gate", gate="transform", bias=-2.0):
        assert (connection.gate.bias == -2).all()
    for connection in connections("highway"):
        assert (connection.transform_gate.bias == -2).all()
    assert all(connection.a() == 0 for connection in connections("rezero"))
    assert all(connection.learned() == 1 for connection in connections("scaled", scale="learned"))
    assert [connection.fixed for connection in connections("scaled")] == [0.1] * 3
    assert [connection.fixed for connection in connections("scaled", scale="depth")] == [1 / math.sqrt(3)] * 3


def test_rezeros_blocks_start_as_their_skip_path():
    model = built_resnet({"name": "rezero"})
    x_BCHW = torch.relu(torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(1)))
    keeps, changes = model.blocks
    assert torch.equal(keeps(x_BCHW), x_BCHW)
    assert torch.equal(changes(x_BCHW), F.relu(changes.shortcut(x_BCHW)))
    preact = built_resnet({"name": "rezero"}, ResNetSettings(size="preact-resnet110", width=8, blocks=(2,)))
    assert torch.equal(preact.blocks[1](x_BCHW), x_BCHW)


def test_a_learned_scale_starts_as_plain_addition():
    plain, learned = (
        built_resnet(options) for options in ({"name": "addition"}, {"name": "scaled", "scale": "learned"})
    )
    assert torch.equal(plain(IMAGES), learned(IMAGES))


def gate_maps(model: ResNet) -> list[Tensor]:
    maps: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, WindowGate | PixelGate):
            module.register_forward_hook(lambda gate, read, _: maps.append(gate.values(read[1])["scalar"]))
    with torch.no_grad():
        model(IMAGES)
    return maps


def test_comts_gates_start_near_a_half():
    """Symmetric around 1/2 over the draws of their matrices; one network's 4 gates lie within some tenths of it."""
    for options in ({"name": "comt-sliding-window"}, {"name": "comt-pixel"}):
        maps = [gate for seed in range(20) for gate in gate_maps(built_resnet(options, MEDIUM, seed))]
        means = torch.stack([gate.mean() for gate in maps])
        assert all(gate.shape[:2] == (3, 1) for gate in maps)
        # 120 gates. One filter: z = w / 2, w uniform in +-1, so z has .29 and the gate a quarter of it, .07.
        assert means.mean().item() == pytest.approx(0.5, abs=0.03)
        assert std(means) == pytest.approx(0.07, abs=0.03)
