"""Perplexities, the published script's off-by-one too, and accuracies, against computations by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tiny_runs import pictures
from torch import Tensor, nn

from comt_cli.data.loader import EvaluationBatches
from comt_cli.data.split import IGNORE
from comt_cli.layers.image_input import ImageInput
from comt_cli.models.build import empty_network, materialise, wiring_of
from comt_cli.tasks.settings.language import ModelSettings
from comt_cli.training.evaluation import perplexity
from comt_cli.training.objective import ClassifierLoss, SummedLoss
from comt_cli.training.parallel import World
from comt_cli.training.tasks.images import ImageRun, classes_before
from comt_cli.training.tasks.language import LanguageRun

CPU = torch.device("cpu")
WORLD = World(CPU)


def evaluate(objective: nn.Module, pairs, world: World = WORLD):
    """The evaluation of a language model whose objective this is, on pairs of tokens and targets."""
    parts = {"settings": SimpleNamespace(precision="fp32"), "world": world, "tensors": tuple}
    return LanguageRun.evaluate(
        SimpleNamespace(objective=objective, **parts), pairs, SimpleNamespace(tokens_per_byte=0.25)
    )


def evaluate_images(objective: ClassifierLoss, pairs):
    """The same of an image classifier, on pairs of images and labels."""
    parts = {"model": objective.model, "validation": None, "_typed": tuple, "_validation_input": tuple}
    run = SimpleNamespace(objective=objective, settings=SimpleNamespace(precision="fp32"), world=WORLD, **parts)
    return ImageRun.evaluate(run, pairs, None)


class FixedLoss(nn.Module):
    """Says a given mean loss of each batch in turn."""

    def __init__(self, *means: float) -> None:
        super().__init__()
        self.means = list(means)

    def forward(self, tokens, targets):
        assert not self.training
        assert not torch.is_grad_enabled()
        return torch.tensor(self.means.pop(0) * int((targets != IGNORE).sum()), dtype=torch.float64)


def batch(counted: int, ignored: int = 0):
    targets = torch.tensor([[1] * counted + [IGNORE] * ignored])
    return torch.zeros_like(targets), targets


@pytest.mark.parametrize(("batches", "printed"), [(200, 25.38), (800, 25.69)])
def test_what_the_published_script_prints(batches, printed):
    """methods.md, section 1, computed there by running it: a true loss of 3.25 (25.79) with n batches."""
    found = evaluate(FixedLoss(*[3.25] * batches), [batch(5)] * batches)
    assert found.metrics["perplexity"] == pytest.approx(math.exp(3.25), rel=1e-12)
    assert f"{found.metrics['perplexity']:.2f}" == "25.79"
    assert f"{found.metrics['galore_perplexity']:.2f}" == f"{printed:.2f}"
    assert found.metrics["galore_perplexity"] == pytest.approx(math.exp(3.25 * batches / (batches + 1)), rel=1e-12)


def test_tokens_weigh_the_loss_and_batches_the_other():
    """A batch of padding alone has no weight in either."""
    found = evaluate(FixedLoss(2.0, 5.0, 7.0), [batch(9, 1), batch(1, 9), batch(0, 5)])
    assert found.loss == pytest.approx((9 * 2 + 1 * 5) / 10)
    assert found.metrics["bits_per_byte"] == pytest.approx(2.3 / math.log(2) / 4)  # four bytes a token
    assert found.metrics["galore_perplexity"] == pytest.approx(math.exp((2 + 5) / 3))
    assert found.extent == {"tokens": 10, "batches": 2}
    assert math.isnan(evaluate(FixedLoss(2.0, math.nan), [batch(4), batch(4)]).loss)
    assert [perplexity(each) for each in (701.0, math.nan, 0.0)] == [None, None, 1.0]
    with pytest.raises(ValueError, match="has no targets"):
        evaluate(FixedLoss(1.0), [batch(0, 3)])


def test_what_the_script_prints_with_two_processes():
    """Each divides the sum of its n batch means by n + 1; the printed number averages the processes."""

    class Two(World):
        def sum(self, tensor):
            # The other process: 3 batches too, of mean losses 2, 3 and 4, with 5 targets each.
            return tensor + torch.tensor([45.0, 15.0, 9.0, 3.0], dtype=tensor.dtype)

    found = evaluate(FixedLoss(1.0, 2.0, 3.0), [batch(5)] * 3, Two(WORLD.device, 0, 2))
    assert found.metrics["galore_perplexity"] == pytest.approx(
        math.exp(((1 + 2 + 3) / 4 + (2 + 3 + 4) / 4) / 2), rel=1e-12
    )
    assert found.loss == pytest.approx(2.5)
    assert found.extent["batches"] == 6


def test_perplexity_is_that_of_a_loop_over_tokens():
    """Ragged rows of a network: exp of the mean of -log p over every single target, in float64."""
    model = empty_network(
        ModelSettings(size="tiny", width=32, ffn_width=48, layers=2, heads=2),
        wiring_of({"name": "comt"}),
        vocabulary=50,
    )
    materialise(model, torch.device("cpu"), 0)
    generator = torch.Generator().manual_seed(0)
    batches, losses = [], []
    for lengths in ((4, 9, 1), (9, 2)):
        tokens = torch.randint(50, (len(lengths), 10), generator=generator)
        targets = torch.full_like(tokens, IGNORE)
        log_p = F.log_softmax(model(tokens).detach().double(), dim=-1)
        for row, length in enumerate(lengths):
            targets[row, :length] = tokens[row, 1 : length + 1]
            losses += [-log_p[row, at, tokens[row, at + 1]].item() for at in range(length)]
        batches.append((tokens, targets))
    found = evaluate(SummedLoss(model), batches)
    # fp32 logits of size 1: an error of 1e-7 each.
    assert found.metrics["perplexity"] == pytest.approx(math.exp(math.fsum(losses) / len(losses)), rel=1e-6)
    assert found.extent["tokens"] == len(losses) == 25


# ---- images

SIX = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


class Says(nn.Module):
    """Reads its logits off the images, as they are."""

    def forward(self, images_BCHW: Tensor) -> Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        return images_BCHW[:, 0, 0]


def says(*rows: tuple[int, list[float]]) -> tuple[Tensor, Tensor]:
    """Images that say these logits, with their labels."""
    labels = torch.tensor([label for label, _ in rows])
    return torch.tensor([logits for _, logits in rows])[:, None, None], labels


def test_accuracies_by_hand():
    """Labels ranked 1st, 5th and 6th of six classes; one image that does not count."""
    objective = ClassifierLoss(Says())
    found = evaluate_images(objective, [says((5, SIX), (1, SIX)), says((0, SIX), (IGNORE, SIX))])
    total = math.log(sum(math.exp(value) for value in SIX))
    assert found.loss == pytest.approx(((total - 5) + (total - 1) + (total - 0)) / 3, rel=1e-6)
    assert found.metrics["accuracy"] == pytest.approx(100 / 3)
    assert found.metrics["top5_accuracy"] == pytest.approx(200 / 3)
    assert found.extent["images"] == 3
    assert objective.training
    with pytest.raises(ValueError, match="has no targets"):
        evaluate_images(objective, [says((IGNORE, SIX))])
    nan = evaluate_images(objective, [says((0, [math.nan] * 7))])
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
    found = evaluate_images(ClassifierLoss(model), [source(part) for each in ranks for part in each])
    assert found.extent["images"] == 20
    assert found.loss == pytest.approx(losses.mean().item(), rel=1e-5)
    assert found.metrics["accuracy"] == pytest.approx(100 * (logits.argmax(1) == labels).double().mean().item())
