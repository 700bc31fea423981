"""Image classification and its evaluation.

Batch normalisation makes the samples of a batch depend on each other. Several processes normalise with their own parts
of the batch, and micro-batches by themselves: another number of either changes results by more than rounding
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
    """A ResNet's run. Model and images are in channels-last memory format."""

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
        return f"batch norms see {local_rows % alone} images at a time, not {alone} as on one device: results differ"

    def observed(self) -> dict[str, nn.Parameter]:
        """Every convolution, the parameters with four dimensions."""
        return {name: parameter for name, parameter in self.model.named_parameters() if parameter.dim() == 4}

    def inputs(self, batch: ImageBatch) -> tuple[Tensor, ...]:
        return self._typed(self._train_input(batch))

    def _typed(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        images, labels = pair
        return images.to(parameter_dtype(self.settings.precision)), labels  # autocast converts them

    def evaluate(self, batches: Iterable[ImageBatch], split: Split[ImageBatch]) -> Evaluation:
        """Top-1 and top-5 accuracy in per cent over all processes' batches; labels equal to `IGNORE` do not count.
        Raises `ValueError` if there are no images."""
        assert split is self.validation  # image sets have no test split
        for buffer in self.model.buffers():
            self.world.copy_from_main(buffer)

        def tally(images_BCHW: Tensor, labels_B: Tensor) -> Tensor:
            """Loss, images, top-1 hits, top-5 hits."""
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
    """The number of classes that a classifier ranks before the right one, [B]; arbitrary for the label `IGNORE`. Ties
    are ordered by class index. Every NaN counts as ranked before; if the right class has NaN, all classes do."""
    own_B = labels_B.clamp(min=0)
    own_logit_B1 = logits_BN.gather(1, own_B[:, None])
    is_later_BN = torch.arange(logits_BN.shape[1], device=logits_BN.device) >= own_B[:, None]
    behind_BN = (logits_BN < own_logit_B1) | ((logits_BN == own_logit_B1) & is_later_BN)
    return (~behind_BN).sum(1)
