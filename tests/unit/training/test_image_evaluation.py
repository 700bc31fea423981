"""Loss and accuracies against a computation by hand, over every image exactly once."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_runs import pictures
from torch import Tensor, nn

from comt_cli.data.loader import EvaluationBatches
from comt_cli.data.split import IGNORE
from comt_cli.layers.image_input import ImageInput
from comt_cli.training.objective import ClassifierLoss
from comt_cli.training.parallel import World
from comt_cli.training.tasks.images import classes_before, evaluate_images

CPU = torch.device("cpu")
WORLD = World(CPU)
SIX = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


class Says(nn.Module):
    """Reads its logits off the images, as they are."""

    def forward(self, images_BCHW: Tensor) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        return images_BCHW[:, 0, 0]


def batch(*rows: tuple[int, list[float]]) -> tuple[Tensor, Tensor]:
    """Images that say these logits, with their labels."""
    labels = torch.tensor([label for label, _ in rows])
    return torch.tensor([logits for _, logits in rows])[:, None, None], labels


def test_by_hand():
    """Labels ranked 1st, 5th and 6th of six classes; one image that does not count."""
    objective = ClassifierLoss(Says())
    found = evaluate_images(objective, [batch((5, SIX), (1, SIX)), batch((0, SIX), (IGNORE, SIX))], "fp32", WORLD)
    total = math.log(sum(math.exp(value) for value in SIX))
    assert found.loss == pytest.approx(((total - 5) + (total - 1) + (total - 0)) / 3, rel=1e-6)
    assert found.metrics["accuracy"] == pytest.approx(100 / 3)
    assert found.metrics["top5_accuracy"] == pytest.approx(200 / 3)
    assert found.extent["images"] == 3
    assert objective.training
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate_images(objective, [batch((IGNORE, SIX))], "fp32", WORLD)
    nan = evaluate_images(objective, [batch((0, [math.nan] * 7))], "fp32", WORLD)
    assert nan.line() == {"validation_loss": None, "validation_accuracy": 0, "validation_top5_accuracy": 0}


def test_ties_and_what_is_no_number():
    nan = math.nan
    logits = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [nan, 2.0, 1.0], [nan, nan, nan], [0.0, nan, 9.0]])
    assert classes_before(logits, torch.tensor([0, 1, 1, 0, 2])).tolist() == [0, 1, 1, 3, 1]


@pytest.mark.parametrize("size", [1, 7])
def test_every_image_counts_once_whatever_the_batches(size):
    """Of 20 images, by two processes of which one has fewer images of each batch, or none."""
    source, validation = ImageInput(pictures(), "validation", "crop", CPU), pictures().validation
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(10)).eval()
    images, labels = source(validation.batch(torch.arange(20).numpy()))
    logits = model(images).detach().double()
    losses = -logits.log_softmax(1)[torch.arange(20), labels]
    ranks = [EvaluationBatches(validation, batch_size=size, rank=rank, world_size=2) for rank in range(2)]
    found = evaluate_images(ClassifierLoss(model), [source(part) for each in ranks for part in each], "fp32", WORLD)
    assert found.extent["images"] == 20
    assert found.loss == pytest.approx(losses.mean().item(), rel=1e-5)
    assert found.metrics["accuracy"] == pytest.approx(100 * (logits.argmax(1) == labels).double().mean().item())
