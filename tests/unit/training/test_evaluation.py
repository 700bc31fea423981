"""Both perplexities against naive computations, and the published script's off-by-one as it was measured."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from comt_cli.data.split import IGNORE
from comt_cli.models.build import empty_network, materialise, wiring_of
from comt_cli.tasks.settings.language import ModelSettings
from comt_cli.training.evaluation import bounded_exp
from comt_cli.training.objective import SummedLoss
from comt_cli.training.parallel import World
from comt_cli.training.tasks.language import evaluate

WORLD = World(torch.device("cpu"))


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
    found = evaluate(FixedLoss(*[3.25] * batches), [batch(5)] * batches, "fp32", WORLD, 0.25)
    assert found.metrics["perplexity"] == pytest.approx(math.exp(3.25), rel=1e-12)
    assert f"{found.metrics['perplexity']:.2f}" == "25.79"
    assert f"{found.metrics['galore_perplexity']:.2f}" == f"{printed:.2f}"
    assert found.metrics["galore_perplexity"] == pytest.approx(math.exp(3.25 * batches / (batches + 1)), rel=1e-12)


def test_tokens_weigh_the_loss_and_batches_the_other():
    """A batch of padding alone has no weight in either."""
    found = evaluate(FixedLoss(2.0, 5.0, 7.0), [batch(9, 1), batch(1, 9), batch(0, 5)], "fp32", WORLD, 0.25)
    assert found.loss == pytest.approx((9 * 2 + 1 * 5) / 10)
    assert found.metrics["bits_per_byte"] == pytest.approx(2.3 / math.log(2) / 4)  # four bytes a token
    assert found.metrics["galore_perplexity"] == pytest.approx(math.exp((2 + 5) / 3))
    assert found.extent == {"tokens": 10, "batches": 2}
    assert math.isnan(evaluate(FixedLoss(2.0, math.nan), [batch(4), batch(4)], "fp32", WORLD, 0.25).loss)
    assert bounded_exp(699.0) < math.inf == bounded_exp(701.0)
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate(FixedLoss(1.0), [batch(0, 3)], "fp32", WORLD, 0.25)


def test_what_the_script_prints_with_two_processes():
    """Each divides the sum of its n batch means by n + 1; the printed number averages the processes."""

    class Two(World):
        def sum(self, tensor):
            # The other process: 3 batches too, of mean losses 2, 3 and 4, with 5 targets each.
            return tensor + torch.tensor([45.0, 15.0, 9.0, 3.0], dtype=tensor.dtype)

    found = evaluate(FixedLoss(1.0, 2.0, 3.0), [batch(5)] * 3, "fp32", Two(WORLD.device, 0, 2), 0.25)
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
    found = evaluate(SummedLoss(model), batches, "fp32", WORLD, 0.25)
    # fp32 logits of size 1: an error of 1e-7 each.
    assert found.metrics["perplexity"] == pytest.approx(math.exp(math.fsum(losses) / len(losses)), rel=1e-6)
    assert found.extent["tokens"] == len(losses) == 25
