"""Validation of language models: the perplexity of this project, and beside it the number that the papers' scripts
would have printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from comt_cli.data.side import IGNORE
from comt_cli.recipe.settings import Precision
from comt_cli.training.devices import compute_context
from comt_cli.training.world import World


@dataclass(frozen=True)
class LanguageEvaluation:
    """Loss in nats per token.

    `perplexity` is exp of the token-weighted mean over all targets. `galore_perplexity` is what the public scripts
    print: exp of the unweighted mean over batches of each batch's mean, times n / (n + 1), because their count of
    batches starts at one; n is of one process, and the processes' numbers are averaged. It depends on the batch size
    and the number of processes and lies below the truth; it is here for comparison only. `bits_per_byte` is the loss
    in bits, times the tokens a byte of the whole validation split: other than a perplexity it can be compared between
    vocabularies.
    """

    loss: float
    galore_loss: float
    tokens_per_byte: float
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

    @property
    def bits_per_byte(self) -> float:
        """loss / ln 2 * tokens / bytes."""
        return self.loss / math.log(2) * self.tokens_per_byte

    def line(self) -> dict[str, float | None]:
        """Its numbers in `metrics.jsonl`."""
        return {
            "validation_loss": finite(self.loss),
            "validation_perplexity": finite(self.perplexity),
            "validation_bits_per_byte": finite(self.bits_per_byte),
            "validation_galore_perplexity": finite(self.galore_perplexity),
        }

    def numbers(self) -> dict[str, float | None]:
        """Its numbers in `result.json`."""
        return {
            "loss": self.loss,
            "perplexity": finite(self.perplexity),
            "bits_per_byte": finite(self.bits_per_byte),
            "galore_perplexity": finite(self.galore_perplexity),
        }

    def extent(self) -> dict[str, int]:
        """What it went over; batches are those of all processes that had a target."""
        return {"tokens": self.tokens, "batches": self.batches}


def bounded_exp(value: float) -> float:
    """exp, infinite where a float cannot hold it."""
    return math.exp(value) if value < 700 else math.inf


def finite(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


def evaluate(
    module: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    precision: Precision,
    world: World,
    tokens_per_byte: float,
) -> LanguageEvaluation:
    """Evaluate a `SummedLoss` on this process's batches of (tokens, targets), and sum over all processes.

    `tokens_per_byte` is that of the validation split.

    Returns an evaluation whose losses may be NaN if the model's are.

    Raises:
        ValueError: there is not one target to predict.
    """

    def tally(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Loss, tokens, batch means, batches."""
        count = int((targets_BT != IGNORE).sum())
        value = float(module(tokens_BT, targets_BT))
        numbers = [value, count, value / count, 1.0] if count else [0.0] * 4
        return torch.tensor(numbers, dtype=torch.float64)

    loss_sum, tokens, mean_sum, count_batches = sums_over(module, batches, tally, precision, world)
    if not tokens:
        raise ValueError("there is no target to evaluate on")
    return LanguageEvaluation(
        loss=loss_sum / tokens,
        # mean over processes of sum / (n + 1), where all have the same n
        galore_loss=mean_sum / (count_batches + world.size),
        tokens_per_byte=tokens_per_byte,
        tokens=int(tokens),
        batches=int(count_batches),
    )


@torch.no_grad()
def sums_over(
    module: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    tally: Callable[[Tensor, Tensor], Tensor],
    precision: Precision,
    world: World,
) -> list[float]:
    """The sum of `tally(inputs, targets)`, some numbers, over the batches of all processes; `module` is evaluating
    meanwhile, and is training afterwards.

    A tally on the device is not waited for before the last batch is under way.
    """
    module.eval()
    found = []
    for inputs, targets in batches:
        with compute_context(precision, world.device):
            found.append(tally(inputs.to(world.device), targets.to(world.device)))
    module.train()
    # In fp64: sums are of up to tens of millions of losses, and fp32 would lose the last of them.
    sums = torch.zeros(len(found[0]), dtype=torch.float64)
    for numbers in torch.stack(found).cpu().double():
        sums += numbers
    total: list[float] = world.sum(sums.to(world.device) if world.device.type == "cuda" else sums).tolist()
    return total
