"""A ResNet with its batch norms switched over to the kernel: the same training, and what is said of the choice."""

from __future__ import annotations

import copy

import pytest
import torch

from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from
from comt_cli.models.build import empty_network
from comt_cli.models.kernels import use_kernels
from comt_cli.models.resnet import ResNet
from comt_cli.tasks.settings.images import ResNetSettings

CPU = torch.device("cpu")
METHODS = {
    "plain": {"name": "addition"},
    "window": {"name": "comt-sliding-window", "ratio": 4},
    "pixel": {"name": "comt-pixel", "hidden": 2},
    "dropped gamma": {"name": "comt-pixel", "hidden": 2, "gamma": "dropped"},
    "rezero": {"name": "rezero"},
}


def network(method: str, size: str = "resnet18", blocks: tuple[int, ...] = (1, 1, 1)) -> ResNet:
    """Narrow blocks, all but the first of which change the shape."""
    settings = ResNetSettings(size=size, width=8, blocks=blocks)
    model = empty_network(settings, method_from(METHODS[method]).wiring(), classes=4).to_empty(device="cpu")
    initialise(model, 0)
    return model.to(memory_format=torch.channels_last).train()


def images(count: int = 6) -> torch.Tensor:
    x = torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(3))
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.skipif("build.available() is not None", reason="the C++ kernels cannot be built")
@pytest.mark.parametrize(
    ("method", "size"), [*((method, "resnet18") for method in METHODS), ("window", "resnet50"), ("pixel", "resnet50")]
)
def test_a_fused_network_trains_as_the_reference_does(method, size):
    """Logits, every gradient and the running statistics, in fp32. Each of up to ten norms divides by a deviation and
    rounds anew; 1e-4 of the largest gradient of a tensor holds, where a wrong formula is off by orders more."""
    reference = network(method, size)
    fused = copy.deepcopy(reference)
    choices = use_kernels(fused, "fused", CPU, torch.float32, compiled=False)
    assert all(each.fused for each in choices.values()), choices
    labels = torch.arange(6) % 4
    outputs = []
    for model in (reference, fused):
        logits = model(images())
        torch.nn.functional.cross_entropy(logits, labels).backward()
        outputs.append(logits)
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    other = dict(fused.named_parameters())
    for name, parameter in reference.named_parameters():
        scale = parameter.grad.abs().max().clamp_min(1e-4)
        assert (other[name].grad - parameter.grad).abs().max() <= 2e-4 * scale, name
    kept = dict(fused.named_buffers())
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(kept[name], buffer, rtol=1e-5, atol=1e-6, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(fused.eval()(images()), reference.eval()(images()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_on_a_gpu_no_norm_is_fused_and_the_reason_is_said(method):
    model = network(method)
    choices = use_kernels(model, "fused", torch.device("cuda"), torch.float32, compiled=False)
    assert not any(getattr(module, "fused", False) for module in model.modules())
    assert {each.reason for each in choices.values()} == {"batch norms have a kernel only for CPUs"}
