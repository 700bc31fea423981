"""Image classifiers as the loop sees them.

Batch normalisation makes the samples of a batch depend on each other, which two things follow from. With several
processes each normalises with its own part of the batch, as the papers' runs on eight GPUs did, and a micro-batch with
itself: another number of either gives other numbers, not only other rounding, which a run says (`caution`). And the
running statistics, of which every process has its own, are part of a model's state: the main process's are those that
are saved, and that all processes evaluate with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.data.images.dataset import ImageBatch, ImageDataset
from comt_cli.errors import UserError
from comt_cli.kernels.choice import Choice
from comt_cli.models.build import empty_network, materialise, wiring_of
from comt_cli.models.cost import dimensions_of
from comt_cli.models.kernels import use_kernels
from comt_cli.models.resnet import ResNet
from comt_cli.runs.plan import RunSpec
from comt_cli.training.devices import parameter_dtype, product_dtype
from comt_cli.training.image_evaluation import ImageEvaluation, evaluate_images
from comt_cli.training.image_input import ImageInput
from comt_cli.training.objective import ClassifierLoss
from comt_cli.training.task import Task
from comt_cli.training.world import World


class ImageTask(Task[ImageBatch]):
    """A ResNet that names the class of every image. Model and images lie in channels-last memory."""

    unit = "images"
    model: ResNet
    objective: ClassifierLoss

    def __init__(self, spec: RunSpec, dataset: ImageDataset, world: World) -> None:
        super().__init__(spec, world, dataset.train, dataset.validation)
        self.image, self.dataset = spec.image, dataset
        self.norms_every = self.image.train.gradient_norms_every

    def build(self) -> None:
        self.model = empty_network(self.image.model, wiring_of(self.spec.method), **dimensions_of(self.image))
        self.objective = ClassifierLoss(self.model)

    def use_kernels(self) -> dict[str, Choice]:
        wanted, dtype = self.settings.kernels, product_dtype(self.settings.precision)
        return use_kernels(self.model, wanted, self.world.device, dtype, compiled=self.settings.compile)

    def place(self) -> None:
        device = self.world.device
        materialise(self.model, device, self.spec.seed)
        self.model.to(parameter_dtype(self.settings.precision))
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.settings.compile:
            self.objective.compile_model()
        augmentation = self.image.data.augmentation
        self._train_input = ImageInput(self.dataset, "train", augmentation, device)
        self._validation_input = ImageInput(self.dataset, "validation", augmentation, device)

    def caution(self, local_rows: int) -> str | None:
        alone = self.settings.micro_batch_size or self.settings.batch_size
        if local_rows % alone == 0:
            return None
        return (
            f"batch norms see as few as {local_rows % alone} images at a time on {self.world.size} devices, and "
            f"{alone} on one: the numbers are not those of a run on one device"
        )

    def watched(self) -> dict[str, nn.Parameter]:
        """Every convolution: what has four dimensions."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.dim() == 4}

    def tensors(self, batch: ImageBatch) -> tuple[Tensor, Tensor]:
        return self._typed(self._train_input(batch))

    def _typed(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Images in the type of the weights; autocast turns them into another by itself."""
        images, labels = pair
        return images.to(parameter_dtype(self.settings.precision)), labels

    def evaluate(self, batches: Iterable[ImageBatch]) -> ImageEvaluation:
        for buffer in self.model.buffers():
            self.world.copy_from_main(buffer)
        pairs = (self._typed(self._validation_input(batch)) for batch in batches)
        return evaluate_images(self.objective, pairs, self.settings.precision, self.world)

    def checkpoint_parts(self) -> dict[str, Any]:
        dataset = self.dataset
        return {
            "classes": list(dataset.class_names),
            "mean": [float(number) for number in dataset.mean],
            "std": [float(number) for number in dataset.std],
            "size": int(dataset.size),
        }

    def stale_plan(self) -> UserError:
        return UserError(
            f"{self.image.data.images} does not hold the images any more that this run was planned with",
            "They were changed, or files came or went. The same command plans runs of the images as they are now.",
        )
