"""Validation: the perplexity of this project, and beside it the number that the papers' scripts would have printed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from comt_cli.data import IGNORE
from comt_cli.recipe.settings import Precision
from comt_cli.training.precision import compute_context
from comt_cli.training.world import World


@dataclass(frozen=True)
class Evaluation:
    """Loss in nats per token.

    `perplexity` is exp of the token-weighted mean over all targets. `galore_perplexity` is what the public scripts
    print: exp of the unweighted mean over batches of each batch's mean, times n / (n + 1), because their count of
    batches starts at one; n is of one process, and the processes' numbers are averaged. It depends on the batch size
    and the number of processes and lies below the truth; it is here for comparison only.
    """

    loss: float
    galore_loss: float
    tokens: int
    batches: int

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return bounded_exp(self.loss)

    @property
    def galore_perplexity(self) -> float:
        """exp(galore_loss)."""
        return bounded_exp(self.galore_loss)


def bounded_exp(value: float) -> float:
    """exp, infinite where a float cannot hold it."""
    return math.exp(value) if value < 700 else math.inf


@torch.no_grad()
def evaluate(
    module: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], precision: Precision, world: World
) -> Evaluation:
    """Evaluate a `SummedLoss` on this process's batches of (tokens, targets), and sum over all processes.

    Returns an evaluation whose losses may be NaN if the model's are.

    Raises:
        ValueError: there is not one target to predict.
    """
    module.eval()
    # Sums are of up to tens of millions of losses: fp32 would lose the last of them.
    sums = torch.zeros(4, dtype=torch.float64)  # loss, tokens, batch means, batches
    for tokens_BT, targets_BT in batches:
        with compute_context(precision, world.device):
            loss = module(tokens_BT.to(world.device), targets_BT.to(world.device))
        count = int((targets_BT != IGNORE).sum())
        if count:
            value = float(loss)
            sums += torch.tensor([value, count, value / count, 1.0], dtype=torch.float64)
    module.train()
    sums = world.sum(sums.to(world.device) if world.device.type == "cuda" else sums).cpu()
    loss_sum, tokens, mean_sum, count_batches = sums.tolist()
    if not tokens:
        raise ValueError("there is no target to evaluate on")
    return Evaluation(
        loss=loss_sum / tokens,
        # mean over processes of sum / (n + 1), where all have the same n
        galore_loss=mean_sum / (count_batches + world.size),
        tokens=int(tokens),
        batches=int(count_batches),
    )
