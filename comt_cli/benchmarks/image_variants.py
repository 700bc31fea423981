"""The variants of an image classifier's training step, built as those of a language model are (`step_variants`): all
fit on a device at once, and those of one network share its weights and its optimiser's states."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.benchmarks.image_shapes import ImageShape
from comt_cli.benchmarks.names import IMAGE_VARIANTS
from comt_cli.benchmarks.step_turns import CompileWhat, Prepared, Unavailable
from comt_cli.benchmarks.workshop import not_fused, prepared, share_weights
from comt_cli.data.images.torchvision_import import make_torchvision_importable
from comt_cli.errors import UserError
from comt_cli.installing import install_package
from comt_cli.models.build import empty_network, materialise, wiring_of
from comt_cli.models.kernels import use_kernels
from comt_cli.models.resnet import ResNet
from comt_cli.recipe.settings import Precision
from comt_cli.tasks.settings.images import ImageTrainSettings
from comt_cli.training.devices import compute_context, parameter_dtype, product_dtype
from comt_cli.training.objective import ClassifierLoss, prepare_compiler
from comt_cli.training.optimisation import sgd

_METHODS: dict[str, dict[str, Any]] = {
    "plain": {"name": "addition"},
    "window": {"name": "comt-sliding-window", "ratio": 64},
    "pixel": {"name": "comt-pixel", "hidden": 2},
}
PEER = "torchvision"
BEST_PLAIN = ["plain", "plain-compiled", "plain-fused-eager", "plain-fused"]
"""The quickest of these is what modulated steps are measured against: on a CPU it need not be a compiled one."""
OPTIONAL = ("torchvision", "torchvision-compiled", "window-eager", "pixel-eager")
"""Left out where they do not fit in a device's memory; for the others the batch is made smaller."""
_COMPILED = ("compiled", "fused")


def is_compiled(variant: str) -> bool:
    """Whether torch.compile has a part in it."""
    return variant.partition("-")[2] in _COMPILED


class ImageWorkshop:
    """Builds the variants of one shape in one precision on one device. Models and images lie in channels-last memory;
    the images are noise, ready on the device: augmentation is no part of the step."""

    def __init__(
        self, shape: ImageShape, precision: Precision, device: torch.device, compile_what: CompileWhat
    ) -> None:
        self.shape, self.precision, self.device, self.compile_what = shape, precision, device, compile_what
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(shape.batch, 3, shape.pixels, shape.pixels, generator=generator)
        labels = torch.randint(0, shape.classes, (shape.batch,), generator=generator)
        self.images = images.to(device, parameter_dtype(precision)).contiguous(memory_format=torch.channels_last)
        self.labels = labels.to(device)
        self._networks: dict[str, tuple[nn.Module, torch.optim.Optimizer]] = {}

    def prepare(self, variant: str) -> Prepared:
        """A variant with its step and its forward pass, which is that of training (batch statistics).

        Raises:
            Unavailable: this machine has none of its parts, or not the library.
        """
        base, _, how = variant.partition("-")
        model, notes = self._torchvision() if base == PEER else self._ours(base, fused=how.startswith("fused"))
        loss_sum = ClassifierLoss(model)
        if how in _COMPILED:
            self._compile(loss_sum, model)

        def loss() -> Tensor:
            with compute_context(self.precision, self.device):
                total: Tensor = loss_sum(self.images, self.labels)
            return total / self.shape.batch

        return prepared(loss, model, self._networks[base][1], notes)

    def _ours(self, base: str, *, fused: bool) -> tuple[ResNet, list[str]]:
        model = empty_network(self.shape.model(), wiring_of(_METHODS[base]), **self.shape.dimensions())
        if base in self._networks:
            share_weights(model, self._networks[base][0])
        else:
            materialise(model, self.device, seed=0)
            self._keep(base, model)
        if not fused:
            return model, []
        choices = use_kernels(model, "fused", self.device, product_dtype(self.precision), compiled=True)
        return model, not_fused(choices)

    def _compile(self, loss_sum: ClassifierLoss, model: nn.Module) -> None:
        if self.compile_what == "whole" or not isinstance(model, ResNet):
            loss_sum.compile_model(keep_others=True)
        else:
            for block in model.blocks:
                block.compile(dynamic=False, fullgraph=True)
        # A block has some eight shapes in one network, and a version of each with gradients and one without.
        prepare_compiler(versions=16 * len(IMAGE_VARIANTS), keep_others=True)

    def _torchvision(self) -> tuple[nn.Module, list[str]]:
        if PEER not in self._networks:
            try:
                self._keep(PEER, torchvision_resnet(self.shape).to(self.device))
            except UserError as error:
                raise Unavailable(error.message) from None
        return self._networks[PEER][0], []

    def _keep(self, base: str, model: nn.Module) -> None:
        model.to(parameter_dtype(self.precision)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        settings = ImageTrainSettings(steps=1, learning_rate=1e-4, precision=self.precision)
        self._networks[base] = model, sgd(model, settings)


def torchvision_resnet(shape: ImageShape) -> nn.Module:
    """torchvision's network of that name, its stem replaced where the shape's is that for 32-pixel images.

    Raises:
        UserError: there is no torchvision, or it has no such network.
    """
    if shape.width or shape.blocks:
        raise UserError("torchvision has no ResNets of other widths and blocks than the published ones")
    model: nn.Module = getattr(import_torchvision_models(), shape.resnet)(num_classes=shape.classes)
    if shape.stem == "3x3":
        model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


def import_torchvision_models() -> ModuleType:
    """torchvision's networks.

    Raises:
        UserError: there is no torchvision, or none that can be imported.
    """
    make_torchvision_importable()
    try:
        return importlib.import_module("torchvision.models")
    except (ImportError, OSError, RuntimeError):
        raise UserError(
            "the comparison with torchvision needs that library", install_package("--upgrade", "torch", "torchvision")
        ) from None
