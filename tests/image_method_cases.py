"""Every method of image classifiers, as the program finds it, and variants that differ in kind, on networks so small
that a test can run them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from initialised import initialised
from torch import Tensor

from comt_cli.methods import methods
from comt_cli.models.build import wiring_of
from comt_cli.models.resnet import ResNet
from comt_cli.tasks.settings.images import ResNetSettings

IMAGE_VARIANTS = {
    "window-4": {"name": "comt-sliding-window", "ratio": 4},
    "window-one-site": {"name": "comt-sliding-window", "sites": ["conv2"]},
    "pixel-one-site": {"name": "comt-pixel", "hidden": 3, "sites": ["norm2"]},
    "pixel-without-gamma": {"name": "comt-pixel", "gamma": "dropped"},
    "sas-pixel": {"name": "sas-resnet", "reads": "pixel", "norm_over": "pixel"},
    "sas-batch": {"name": "sas-resnet", "norm": "batch"},
    "sas-free": {"name": "sas-resnet", "gamma": "free", "gamma_bias": -1.0},
    "sas-single-layer": {"name": "sas-resnet", "gate": "single-layer"},
    "transform": {"name": "scaling-gate", "gate": "transform"},
    "transform-pixel": {"name": "scaling-gate", "gate": "transform", "reads": "pixel"},
    "single-layer": {"name": "scaling-gate", "gate": "single-layer"},
    "scaled-depth": {"name": "scaled", "scale": "depth"},
    "scaled-learned": {"name": "scaled", "scale": "learned"},
}
IMAGE_METHODS = {name: {"name": name} for name in methods("train-resnet")} | IMAGE_VARIANTS
IMAGE_KINDS = (
    *("addition", "comt-pixel", "comt-sliding-window", "pixel-without-gamma", "sas-free", "sas-batch", "scaling-gate"),
    *("transform", "highway", "rezero", "scaled-learned"),
)
"""As `method_cases.KINDS`."""
NETWORKS = {
    "basic": ResNetSettings(size="resnet18", width=8, blocks=(1, 1)),
    "bottleneck": ResNetSettings(size="resnet50", width=4, blocks=(1, 1)),
    "preact": ResNetSettings(size="preact-resnet110", width=8, blocks=(1, 1)),
}
"""Two stages of one block: a block that keeps the shape (the bottleneck's widens it) and one that changes it."""
CLASSES = 5
IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([1, 4, 0])

every_network = pytest.mark.parametrize("settings", NETWORKS.values(), ids=list(NETWORKS))


def built_resnet(options: dict, settings: ResNetSettings = NETWORKS["basic"], seed: int = 1) -> ResNet:
    return initialised(settings, wiring_of(options), seed, classes=CLASSES)


def image_loss(model: ResNet, images: Tensor = IMAGES) -> Tensor:
    return F.cross_entropy(model(images).float(), LABELS)
