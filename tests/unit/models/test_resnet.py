"""ResNets against plain networks of torch's own parts that follow the papers' figures, weight by weight."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from image_method_cases import built_resnet
from initialised import shaken
from torch import Tensor

from comt_cli.models.resnet import PreActBlock
from comt_cli.tasks.settings.images import ResNetSettings

State = dict[str, Tensor]


def conv(state: State, name: str, x: Tensor, stride: int = 1) -> Tensor:
    weight = state[f"{name}.weight"]
    return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)


def bn(state: State, name: str, x: Tensor) -> Tensor:
    part = {key: state[f"{name}.{key}"] for key in ("weight", "bias", "running_mean", "running_var")}
    return F.batch_norm(x, part["running_mean"], part["running_var"], part["weight"], part["bias"], eps=1e-5)


def conv_bn(state: State, name: str, x: Tensor, stride: int = 1) -> Tensor:
    return bn(state, f"{name}.norm", conv(state, f"{name}.convolution", x, stride))


def post_activation(state: State, x: Tensor, strides: list[int], stem: str, convolutions: int) -> Tensor:
    """He et al. 2016a, Figures 2 and 5, with the bottleneck's stride on the 3x3."""
    x = F.relu(conv_bn(state, "stem", x, 1 if stem == "3x3" else 2))
    if stem == "7x7":
        x = F.max_pool2d(x, 3, 2, 1)
    for number, stride in enumerate(strides):
        name = f"blocks.{number}"
        skip = conv_bn(state, f"{name}.shortcut", x, stride) if f"{name}.shortcut.norm.weight" in state else x
        if convolutions == 2:
            y = F.relu(conv_bn(state, f"{name}.conv1", x, stride))
            y = conv_bn(state, f"{name}.conv2", y)
        else:
            y = F.relu(conv_bn(state, f"{name}.conv1", x))
            y = F.relu(conv_bn(state, f"{name}.conv2", y, stride))
            y = conv_bn(state, f"{name}.conv3", y)
        x = F.relu(skip + y)
    return F.linear(x.flatten(2).mean(2), state["classifier.weight"], state["classifier.bias"])


def pre_activation(state: State, x: Tensor, strides: list[int]) -> Tensor:
    """He et al. 2016b, Figure 4e; the first block and those that change the shape activate once for both paths."""
    x = conv(state, "stem", x)
    for number, stride in enumerate(strides):
        name = f"blocks.{number}"
        h = F.relu(bn(state, f"{name}.norm1.norm", x))
        if f"{name}.shortcut.weight" in state:
            skip = conv(state, f"{name}.shortcut", h, stride)
        else:
            skip = h if number == 0 else x
        y = F.relu(conv_bn(state, f"{name}.conv1", h, stride))
        x = skip + conv(state, f"{name}.conv2", y)
    x = F.relu(bn(state, "final.norm", x))
    return F.linear(x.flatten(2).mean(2), state["classifier.weight"], state["classifier.bias"])


CASES = {
    "basic": (ResNetSettings(size="resnet18", width=4, blocks=(2, 1, 2)), 16),
    "basic-imagenet": (ResNetSettings(size="resnet18", width=4, blocks=(1, 2), stem="7x7"), 37),
    "bottleneck": (ResNetSettings(size="resnet50", width=4, blocks=(2, 2)), 9),
    "preact": (ResNetSettings(size="preact-resnet110", width=4, blocks=(2, 2, 1)), 16),
}


@pytest.mark.parametrize(("settings", "size"), CASES.values(), ids=list(CASES))
def test_the_networks_are_the_papers(settings, size):
    model = shaken(built_resnet({"name": "addition"}, settings)).double().eval()
    x_BCHW = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    state = model.state_dict()
    strides = [2 if stage and not number else 1 for stage, n in enumerate(settings.blocks) for number in range(n)]
    if settings.shape().block == "preact":
        assert all(isinstance(block, PreActBlock) for block in model.blocks)
        expected = pre_activation(state, x_BCHW, strides)
    else:
        convolutions = 3 if settings.shape().block == "bottleneck" else 2
        expected = post_activation(state, x_BCHW, strides, settings.stem, convolutions)
    # The same sums in float64, in the order of the same library.
    torch.testing.assert_close(model(x_BCHW), expected, rtol=1e-10, atol=1e-10)
