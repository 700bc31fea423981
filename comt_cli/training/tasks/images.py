"""Image classification, and its evaluation.

Batch normalisation makes the samples of a batch depend on each other. Several processes each normalise with their own
part of the batch, and a micro-batch with itself: another number of either changes results by more than rounding
(`caution`). The running statistics of the main process are saved, and all processes evaluate with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.data.images.dataset import ImageBatch, ImageDataset
from comt_cli.data.split import IGNORE, Split
from comt_cli.layers.image_input import ImageInput
from comt_cli.models.resnet import ResNet
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.images import ImageSettings
from comt_cli.training.devices import parameter_dtype
from comt_cli.training.evaluation import Evaluation, mean_over
from comt_cli.training.objective import ClassifierLoss
from comt_cli.training.parallel import World
from comt_cli.training.tasks import TaskRun


class ImageRun(TaskRun[ImageBatch]):
    """A ResNet that names the class of every image. Model and images lie in channels-last memory."""

    memory_format = torch.channels_last
    model: ResNet
    objective: ClassifierLoss

    def __init__(self, spec: RunSpec, dataset: ImageDataset, world: World) -> None:
        super().__init__(spec, dataset, world)
        self.image, self.dataset = spec.settings_as(ImageSettings), dataset

    def objective_of(self, model: ResNet) -> ClassifierLoss:
        return ClassifierLoss(model)

    def place(self) -> None:
        super().place()
        augmentation, device = self.image.data.augmentation, self.world.device
        self._train_input = ImageInput(self.dataset, "train", augmentation, device)
        self._validation_input = ImageInput(self.dataset, "validation", augmentation, device)

    def caution(self, local_rows: int) -> str | None:
        alone = self.settings.micro_batch_size or self.settings.batch_size
        if local_rows % alone == 0:
            return None
        return f"batch norms see {local_rows % alone} images at a time, and {alone} on one device: the numbers differ"

    def observed(self) -> dict[str, nn.Parameter]:
        """Every convolution: what has four dimensions."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.dim() == 4}

    def inputs(self, batch: ImageBatch) -> tuple[Tensor, ...]:
        return self._typed(self._train_input(batch))

    def _typed(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        images, labels = pair
        return images.to(parameter_dtype(self.settings.precision)), labels  # which autocast turns into another type

    def evaluate(self, batches: Iterable[ImageBatch], split: Split[ImageBatch]) -> Evaluation:
        """Evaluate on this process's batches, and sum over all processes: the share of the images whose label has the
        highest of the classes' numbers, or one of the five highest, in per cent. Labels that are `IGNORE` do not count.
        Raises `ValueError` where there is not one image."""
        assert split is self.validation  # no set of images has a test split
        for buffer in self.model.buffers():
            self.world.copy_from_main(buffer)

        def tally(images_BCHW: Tensor, labels_B: Tensor) -> Tensor:
            """Loss, images, right at first, right among five."""
            logits_BN = self.objective.passes(images_BCHW).float()
            before_B = classes_before(logits_BN, labels_B)
            counted_B = labels_B != IGNORE
            right = (((before_B < most) & counted_B).sum() for most in (1, 5))
            return torch.stack([self.objective.loss_of(logits_BN, labels_B), counted_B.sum(), *right])

        pairs = (self._typed(self._validation_input(batch)) for batch in batches)
        loss, images, (first, five) = mean_over(self.objective, pairs, tally, self.settings.precision, self.world)
        metrics: dict[str, float | None] = {"accuracy": 100 * first / images, "top5_accuracy": 100 * five / images}
        return Evaluation(loss, metrics, {"images": images})

    def checkpoint_parts(self) -> dict[str, Any]:
        mean, std = (list(map(float, each)) for each in (self.dataset.mean, self.dataset.std))
        return {"classes": list(self.dataset.class_names), "mean": mean, "std": std, "size": int(self.dataset.size)}


def classes_before(logits_BN: Tensor, labels_B: Tensor) -> Tensor:
    """The number of classes that a classifier puts before the right one, [B]; anything where the label is `IGNORE`. Of
    equal numbers the class with the lower index is first. Beside a number that is NaN the right class never is."""
    own_B = labels_B.clamp(min=0)
    own_logit_B1 = logits_BN.gather(1, own_B[:, None])
    is_later_BN = torch.arange(logits_BN.shape[1], device=logits_BN.device) >= own_B[:, None]
    behind_BN = (logits_BN < own_logit_B1) | ((logits_BN == own_logit_B1) & is_later_BN)
    return (~behind_BN).sum(1)
