"""Token batches, dropout and label smoothing together: a step is the same however it is divided, and after resuming.

In float64, so that another order of summing some hundred terms is some 1e-13 of the largest.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from same_bits import Reason, assert_same_bits
from torch import Tensor, nn

from comt_cli.data.loader import TrainBatches
from comt_cli.data.pairs.dataset import PairBuckets, TokenLists
from comt_cli.data.special_tokens import SpecialTokens
from comt_cli.kernels.linear_cross_entropy import linear_cross_entropy
from comt_cli.layers.dropout import Dropout, Masks
from comt_cli.training.encoder_decoder import spread

CPU = torch.device("cpu")
VOCABULARY, WIDTH, SEED = 40, 12, 5


class Reader(nn.Module):
    """As much of an encoder-decoder as it takes: targets attend to sources, with dropout on both and on the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.on_source, self.on_target, self.on_weights = Dropout(0.2), Dropout(0.2), Dropout(0.1)
        self.masks = Masks(self)

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        source_BSD = self.on_source(self.embedding(source_BS))
        target_BTD = self.on_target(self.embedding(target_BT))
        scores_BTS = (target_BTD @ source_BSD.mT).masked_fill((source_BS == 0)[:, None], -torch.inf)
        return target_BTD + self.on_weights(scores_BTS.softmax(-1)) @ source_BSD


def split() -> PairBuckets:
    generator = np.random.default_rng(0)
    lists = [
        TokenLists.of([generator.integers(3, VOCABULARY, size).tolist() for size in generator.integers(0, 9, 80)])
        for _ in range(2)
    ]
    return PairBuckets(*lists, SpecialTokens(pad=0, end=1, begin=2), 30, 0)


def steps(world_size: int = 1, micro: int | None = None, first: int = 0) -> list[Tensor]:
    """The loss a target and all gradients, one vector a step, of two steps."""
    torch.manual_seed(0)
    net = Reader().double()
    found = [torch.zeros(1 + VOCABULARY * WIDTH, dtype=torch.float64) for _ in range(2)]
    for rank in range(world_size):
        with TrainBatches(
            split(), seed=SEED, batch_size=4, micro_batch_size=micro, rank=rank, world_size=world_size,
            first_step=first, last_step=first + 2,
        ) as batches:  # fmt: skip
            totals = [batches.targets(first + step) for step in range(2)]
            for step, micro_batches in enumerate(batches):
                for batch in micro_batches:
                    net.masks.move_to(SEED, batch.positions, CPU)
                    arrays = (batch.source, batch.target_in, batch.target_out)
                    source, target_in, target_out = map(torch.from_numpy, arrays)
                    hidden = net(source, target_in).flatten(0, 1)
                    loss = linear_cross_entropy(hidden, net.embedding.weight, target_out.flatten(), "auto", 0.1)
                    (gradient,) = torch.autograd.grad(loss, [net.embedding.weight])
                    found[step] += torch.cat([loss.detach()[None], gradient.flatten()]) / totals[step]
    return found


@pytest.mark.parametrize(("world_size", "micro"), [(1, 1), (1, 3), (2, None), (2, 1), (4, None)])
def test_a_step_is_the_same_however_it_is_divided(world_size, micro):
    """Parts of a batch are padded to other widths, and lie on other devices: masks and targets stay."""
    for mine, whole in zip(steps(world_size, micro), steps(), strict=True):
        torch.testing.assert_close(mine, whole, rtol=1e-11, atol=1e-13)


def test_a_resumed_step_is_the_same_to_the_bit_and_another_is_not():
    first, second = steps()
    resumed, _ = steps(first=1)
    assert_same_bits(resumed, second, Reason.SAME_RUN)
    assert not torch.allclose(first, second, rtol=1e-3)


def test_label_smoothing_is_spread_over_the_other_words():
    """tensor2tensor's convention in torch's: 0.9 for the target, and 0.1 / (V - 1) for each of the others."""
    assert spread(0.1, SimpleNamespace(vocabulary=9)) / 9 == pytest.approx(0.1 / 8)
