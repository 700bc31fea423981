"""One optimiser step: accumulate the gradients of this process's part of the global batch, and update."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from comt_cli.data import Batch, Rows
from comt_cli.recipe.settings import TrainSettings
from comt_cli.training import gradients
from comt_cli.training.checkpoint import random_states, restore_random_states
from comt_cli.training.devices import synchronise
from comt_cli.training.distribution import without_sync
from comt_cli.training.optimisation import learning_rate, set_learning_rate
from comt_cli.training.precision import compute_context
from comt_cli.training.world import World


class Updater:
    """Updates `model` through `module`, its `SummedLoss`, wrapped for the world it is in."""

    def __init__(
        self,
        settings: TrainSettings,
        world: World,
        model: nn.Module,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.settings, self.world = settings, world
        self.module, self.optimizer = module, optimizer
        self.parameters = list(model.parameters())

    def learning_rate(self, step: int) -> float:
        """The rate of update `step`, counted from 0."""
        return learning_rate(self.settings, step)

    def warm_up(self, rows: Rows, sizes: Iterable[int]) -> None:
        """A forward and backward pass for every size of micro-batch, thrown away: nothing moves, no state is drawn on.

        The compiler does its work in it. And DistributedDataParallel settles only after its first backward pass how it
        groups the gradients: without this the first step of every start would add them up in another order.
        """
        before = random_states(self.world.device)
        for size in sizes:
            batch = rows.batch(np.arange(size, dtype=np.int64) % len(rows))
            torch.autograd.backward(self._loss(batch) / max(1, batch.target_tokens))
        self.optimizer.zero_grad(set_to_none=True)
        restore_random_states(before, self.world.device)
        synchronise(self.world.device)

    def step(
        self, micro_batches: Sequence[Batch], total: int, number: int, *, wants_norm: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Update `number` (from 0) from this process's part of the global batch, which has `total` targets over all
        processes.

        Returns the token-weighted mean loss, on the device, and the gradient norm before clipping if it was computed.
        """
        settings, world = self.settings, self.world
        loss_sum = torch.zeros((), device=world.device)
        for index, batch in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            with without_sync(self.module, active=world.size > 1 and not is_last):
                loss = self._loss(batch)
                # Gradients are averaged over processes: times their number, the sum over all tokens is left.
                torch.autograd.backward(loss * (world.size / max(1, total)))
            loss_sum += loss.detach()
        found = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        gradients.complete(found, world)
        norm = None
        if wants_norm or settings.gradient_clipping > 0:
            norm = gradients.norm(found, world)
            if settings.gradient_clipping > 0:
                gradients.clip(found, norm, settings.gradient_clipping)
        set_learning_rate(self.optimizer, self.learning_rate(number))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return world.sum(loss_sum) / max(1, total), norm

    def _loss(self, batch: Batch) -> Tensor:
        with compute_context(self.settings.precision, self.world.device):
            loss: Tensor = self.module(self._tensor(batch.tokens), self._tensor(batch.targets))
        return loss

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.world.device.type == "cuda":
            return tensor.pin_memory().to(self.world.device, non_blocking=True)
        return tensor.to(self.world.device)
