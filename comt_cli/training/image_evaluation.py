"""Validation of image classifiers: the loss, and how often the right class is the first, or among the first five."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from comt_cli.data.side import IGNORE
from comt_cli.recipe.settings import Precision
from comt_cli.training.evaluation import finite, sums_over
from comt_cli.training.objective import ClassifierLoss
from comt_cli.training.world import World


@dataclass(frozen=True)
class ImageEvaluation:
    """Loss in nats per image; accuracies in per cent of the images: the label has the highest of the classes' numbers,
    or one of the five highest. Every image counts once, whatever the batch size and the number of processes."""

    loss: float
    accuracy: float
    top5_accuracy: float
    images: int

    def line(self) -> dict[str, float | None]:
        """Its numbers in `metrics.jsonl`."""
        return {
            "validation_loss": finite(self.loss),
            "validation_accuracy": self.accuracy,
            "validation_top5_accuracy": self.top5_accuracy,
        }

    def numbers(self) -> dict[str, float | None]:
        """Its numbers in `result.json`."""
        return {"loss": self.loss, "accuracy": self.accuracy, "top5_accuracy": self.top5_accuracy}

    def extent(self) -> dict[str, int]:
        """What it went over."""
        return {"images": self.images}


def evaluate_images(
    objective: ClassifierLoss, batches: Iterable[tuple[Tensor, Tensor]], precision: Precision, world: World
) -> ImageEvaluation:
    """Evaluate on this process's batches of (images [B, 3, H, W], labels [B]), and sum over all processes.

    Labels that are `IGNORE` do not count. The loss may be NaN if the model's is.

    Raises:
        ValueError: there is not one image.
    """

    def tally(images_BCHW: Tensor, labels_B: Tensor) -> Tensor:
        """Loss, right at first, right among five, images."""
        logits_BN = objective.logits(images_BCHW).float()
        before_B = classes_before(logits_BN, labels_B)
        counted_B = labels_B != IGNORE
        return torch.stack(
            [
                objective.loss_of(logits_BN, labels_B),
                ((before_B < 1) & counted_B).sum(),
                ((before_B < 5) & counted_B).sum(),
                counted_B.sum(),
            ]
        )

    loss, first, five, images = sums_over(objective, batches, tally, precision, world)
    if not images:
        raise ValueError("there is no image to evaluate on")
    return ImageEvaluation(loss / images, 100 * first / images, 100 * five / images, int(images))


def classes_before(logits_BN: Tensor, labels_B: Tensor) -> Tensor:
    """How many classes a classifier puts before the right one, [B]; anything where the label is `IGNORE`.

    Of equal numbers the class with the lower index is first, as `argmax` has it on one device and not on another.
    Beside a number that is NaN the right class is never first.
    """
    own_B = labels_B.clamp(min=0)
    own_logit_B1 = logits_BN.gather(1, own_B[:, None])
    is_later_BN = torch.arange(logits_BN.shape[1], device=logits_BN.device) >= own_B[:, None]
    behind_BN = (logits_BN < own_logit_B1) | ((logits_BN == own_logit_B1) & is_later_BN)
    return (~behind_BN).sum(1)
