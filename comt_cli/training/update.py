"""One optimiser step: accumulate the gradients of this process's part of the global batch, and update."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor, nn

from comt_cli.data.split import B
from comt_cli.training import gradients
from comt_cli.training.checkpoint import random_states, restore_random_states
from comt_cli.training.devices import compute_context, synchronise
from comt_cli.training.optimisation import learning_rate, set_learning_rate
from comt_cli.training.parallel import without_sync
from comt_cli.training.tasks.base import TaskRun


@dataclass(frozen=True)
class Update:
    """What an update was, on the device: the mean loss over targets; the gradient norm before clipping, and those of
    the task's watched parameters, where they were computed."""

    loss: Tensor
    norm: Tensor | None
    watched_norms: Tensor | None


class Updater(Generic[B]):
    """Updates a task's model through `module`, its objective, wrapped for the world it is in."""

    def __init__(
        self,
        task: TaskRun[B],
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.task, self.settings, self.world = task, task.settings, task.world
        self.module, self.optimizer = module, optimizer
        self.parameters = list(task.model.parameters())
        self.watched = list(task.watched().values())

    def learning_rate(self, step: int) -> float:
        """The rate of update `step`, counted from 0."""
        return learning_rate(self.settings, step)

    def warm_up(self, sizes: Iterable[int]) -> None:
        """A forward and backward pass for every size of micro-batch, thrown away: nothing moves, no state is drawn on,
        and running statistics are put back.

        The compiler does its work in it. And DistributedDataParallel settles only after its first backward pass how it
        groups the gradients: without this the first step of every start would add them up in another order.
        """
        before = random_states(self.world.device)
        statistics = [(buffer, buffer.clone()) for buffer in self.task.model.buffers()]
        for size in sizes:
            batch = self.task.trial_batch(size)
            torch.autograd.backward(self._loss(batch) / max(1, batch.target_count))
        self.optimizer.zero_grad(set_to_none=True)
        for buffer, value in statistics:
            buffer.copy_(value)
        restore_random_states(before, self.world.device)
        synchronise(self.world.device)

    def step(
        self, micro_batches: Sequence[B], total: int, number: int, *, wants_norm: bool, wants_watched: bool = False
    ) -> Update:
        """Update `number` (from 0) from this process's part of the global batch, which has `total` targets over all
        processes. The gradient norm is computed if it is wanted or needed for clipping."""
        settings, world = self.settings, self.world
        loss_sum = torch.zeros((), device=world.device)
        for index, batch in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            with without_sync(self.module, active=world.size > 1 and not is_last):
                loss = self._loss(batch)
                # Gradients are averaged over processes: times their number, the sum over all targets is left.
                torch.autograd.backward(loss * (world.size / max(1, total)))
            loss_sum += loss.detach()
        found = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        gradients.complete(found, world)
        watched_norms = None
        if wants_watched:
            watched_norms = gradients.each_norm([each.grad for each in self.watched if each.grad is not None])
        norm = None
        if wants_norm or settings.gradient_clipping > 0:
            norm = gradients.norm(found, world)
            if settings.gradient_clipping > 0:
                gradients.clip(found, norm, settings.gradient_clipping)
        set_learning_rate(self.optimizer, self.learning_rate(number))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Update(world.sum(loss_sum) / max(1, total), norm, watched_norms)

    def _loss(self, batch: B) -> Tensor:
        inputs = self.task.inputs(batch)
        with compute_context(self.settings.precision, self.world.device):
            loss: Tensor = self.module(*inputs)
        return loss
