"""One optimiser step: accumulate the gradients of this process's part of the global batch, clip them, and update."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Generic

import torch
from torch import Tensor, nn

from comt_cli.data.split import B
from comt_cli.layers.learned import UpdateRule
from comt_cli.layers.residual.scaled import FollowsTraining
from comt_cli.layers.roles import hidden_matrices, joined_rows
from comt_cli.recipe.settings import Training
from comt_cli.tasks.settings import OPTIMIZERS
from comt_cli.tasks.settings.images import ImageTrainSettings
from comt_cli.training.checkpoint import Counters, random_states, restore_random_states
from comt_cli.training.devices import compute_context, synchronise
from comt_cli.training.muon import IS_MUON, Muon
from comt_cli.training.objective import NotCaptured, capturing
from comt_cli.training.parallel import World, is_sharded, local_tensor, without_sync
from comt_cli.training.tasks import TaskRun

RATE = "rate"
"""The key of an optimiser's parameter groups for the factor of the learning rate."""
NO_ROOM = "train.cuda_graphs: there is not enough memory for them"


class Updater(Generic[B]):
    """Updates a task's model through `module`, its objective, wrapped for its world."""

    def __init__(self, task: TaskRun[B], module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.task, self.settings, self.world = task, task.settings, task.world
        self.module, self.optimizer = module, optimizer
        self.parameters = list(task.model.parameters())
        self.observed = list(task.observed().values())
        self.followers = [module for module in task.model.modules() if isinstance(module, FollowsTraining)]
        self._own_gradients: list[Tensor] = []

    def warm_up(self, sizes: Sequence[int], evaluated: Sequence[int] = ()) -> str | None:
        """Run a forward and backward pass for every size of micro-batch, without changing any state. It triggers
        compilation, and fixes the order in which DistributedDataParallel groups and adds gradients.

        With CUDA graphs, evaluations of `evaluated` samples at a time are tried too, with as much memory reserved as
        steps will need. If a pass cannot be captured, graphs are disabled and the reason is returned. Raises
        `NotCaptured` if the recipe requires graphs.
        """
        before = random_states(self.world.device)
        statistics = [(buffer, buffer.clone()) for buffer in self.task.model.buffers()]
        refused = None
        held: list[Tensor] = []
        try:
            held += [torch.empty_like(each) for each in self._kept_by_steps()] if self.task.captured else []
            self._try_passes(sizes, evaluated)
        except (NotCaptured, torch.OutOfMemoryError) as error:
            if not self.task.captured or self.settings.captures != "auto":
                raise
            refused = error.message if isinstance(error, NotCaptured) else NO_ROOM
        held.clear()
        if refused is not None:  # outside the handler: the error keeps the passes' tensors alive
            self.module.train()
            self.optimizer.zero_grad(set_to_none=True)
            self.task.captured = False
            self.task.objective.compile_model()
            if self.world.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.world.device)
            self._try_passes(sizes)
        for buffer, value in statistics:
            buffer.copy_(value)
        restore_random_states(before, self.world.device)
        synchronise(self.world.device)
        return refused

    def _kept_by_steps(self) -> Iterator[Tensor]:
        """Parameters, repeated once per tensor of their size that steps keep: optimiser states and gradient sums."""
        accumulates = self.settings.batch_size > self.task.rows_at_once
        for group in self.optimizer.param_groups:
            states = 1 if group.get(IS_MUON) else 2 if "betas" in group else group["momentum"] != 0
            for parameter in group["params"]:
                yield from [parameter] * (accumulates + (0 if parameter in self.optimizer.state else states))

    def _try_passes(self, sizes: Sequence[int], evaluated: Sequence[int] = ()) -> None:
        with capturing() if self.task.captured else contextlib.nullcontext():
            for _ in range(2 if self.task.captured else 1):  # graphs are captured in the second pass
                for size in sizes:
                    batch = self.task.trial_batch(size)
                    torch.autograd.backward(self._loss(batch) / max(1, batch.target_count))
                    self.optimizer.zero_grad(set_to_none=True)
                self.module.eval()
                with torch.no_grad():
                    for size in evaluated:
                        self._loss(self.task.trial_batch(size))
                self.module.train()

    def step(
        self, micro_batches: Sequence[B], total: int, number: int, *, wants_norm: bool, wants_observed: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Perform update `number` (from 0) with this process's part of the global batch, which has `total` targets over
        all processes. Returns, on the device, the mean loss over targets and, if wanted, the gradient norm before
        clipping and those of the task's observed parameters."""
        world, clipping = self.world, self.settings.gradient_clipping
        for follower in self.followers:
            follower.at_update(number)
        loss_sum = torch.zeros((), device=world.device)
        for index, batch in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            with without_sync(self.module, active=world.size > 1 and not is_last):
                loss = self._loss(batch)
                # Gradients are averaged over processes; multiplying by their number gives the sum over all targets.
                torch.autograd.backward(loss * (world.size / max(1, total)))
            loss_sum += loss.detach()
            if self.task.captured and index == 0 and not is_last:
                self._keep_gradients()
        found = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if any(map(is_sharded, self.parameters)):
            average_full(found, world)
        norm = observed_norms = None
        if wants_observed:  # none of them is sharded
            observed = [parameter.grad for parameter in self.observed if parameter.grad is not None]
            observed_norms = torch.stack(list(torch._foreach_norm(observed)))
        if wants_norm or clipping > 0:
            norm = gradient_norm(found, world)
        if norm is not None and clipping > 0:  # as `clip_grad_norm_` does
            torch._foreach_mul_(list(map(local_tensor, found)), (clipping / (norm + 1e-6)).clamp(max=1))
        set_learning_rate(self.optimizer, learning_rate(self.settings, number))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return world.sum(loss_sum) / max(1, total), norm, observed_norms

    def _keep_gradients(self) -> None:
        """Copy the first micro-batch's gradients out of the CUDA graphs' memory, which the next one overwrites, to the
        same addresses in every step."""
        having = [parameter for parameter in self.parameters if parameter.grad is not None]
        found = [parameter.grad for parameter in having if parameter.grad is not None]
        self._own_gradients = self._own_gradients or [torch.empty_like(gradient) for gradient in found]
        torch._foreach_copy_(self._own_gradients, found)
        for parameter, own in zip(having, self._own_gradients, strict=True):
            parameter.grad = own

    def _loss(self, batch: B) -> Tensor:
        inputs = self.task.inputs(batch)
        with compute_context(self.settings.precision, self.world.device):
            loss: Tensor = self.module(*inputs)
        return loss


def average_full(gradients: Sequence[Tensor], world: World) -> None:
    """Average over processes the gradients that FSDP does not: those of scalar parameters."""
    full = [gradient for gradient in gradients if not is_sharded(gradient)]
    if full:
        means = world.sum(torch.stack(full)) / world.size
        torch._foreach_copy_(full, list(means))


def gradient_norm(gradients: Sequence[Tensor], world: World) -> Tensor:
    """The Euclidean norm of all gradients as one vector, equal in all processes."""
    local = [local_tensor(gradient) for gradient in gradients if is_sharded(gradient)]
    full = [gradient for gradient in gradients if not is_sharded(gradient)]
    if not local:
        return torch.nn.utils.get_total_norm(full)
    # In fp64: the square of a norm may overflow fp32.
    squares = world.sum(torch.nn.utils.get_total_norm(local).double().square())
    if full:
        squares = squares + torch.nn.utils.get_total_norm(full).double().square()
    return squares.sqrt().float()


def all_finite(unseen: list[tuple[Tensor, int, int]], counters: Counters) -> bool:
    """Read and remove the losses of steps, at least one, each with its step and the targets seen until then. At a loss
    that is not finite `counters` are set back to its step, so that the result does not depend on the time of this
    call."""
    losses = torch.stack([loss for loss, *_ in unseen]).tolist()
    for loss, (_, step, tokens) in zip(losses, unseen, strict=True):
        if not math.isfinite(loss):
            counters.step, counters.tokens = step, tokens
            return False
        counters.last_finite_loss = loss
    unseen.clear()
    return True


# ---- the optimiser, and the learning rate of every step


def learning_rate(settings: Training, step: int) -> float:
    """The learning rate of update `step`, counted from 0.

    All schedules rise linearly from 0 over `warmup_steps`, so the first update has rate 0, as in the papers' scripts.
    Then `cosine` and `linear` fall to `min_lr_ratio` of the peak at `steps`, and `noam` as `peak * sqrt(warmup / step)`
    (Vaswani et al. 2017, Eq. 3, with the peak given). `step` divides by ten after each of the `milestones`. If
    `warmup_learning_rate` is given, it is the rate of the whole warm-up.
    """
    peak, warmup, floor = settings.learning_rate, settings.warmup_steps, settings.min_lr_ratio or 0.0
    if step < warmup:
        held = settings.warmup_learning_rate if isinstance(settings, ImageTrainSettings) else None
        return peak * step / warmup if held is None else held
    progress = (step - warmup) / max(1, settings.steps - warmup)
    match settings.schedule:
        case "cosine":
            return peak * (floor + (1 - floor) * (0.5 * (1 + math.cos(math.pi * progress))))
        case "linear":
            return peak * (floor + (1 - floor) * (1 - progress))
        case "noam":
            return peak * math.sqrt(warmup / step)
        case "step":
            assert isinstance(settings, ImageTrainSettings)
            return float(peak / 10.0 ** sum(step >= drop for drop in settings.milestones))
        case _:  # constant
            return peak


def optimizer_of(
    model: nn.Module, settings: Any, added: Collection[nn.Parameter] = frozenset()
) -> torch.optim.Optimizer:
    """The optimiser of the settings (`OPTIMIZERS`) for all trained parameters; `muon` is Muon for the matrices and
    AdamW for the others. Parameters with their own `layers.learned.UpdateRule` follow it. With BERT's settings, biases,
    norms and scalars have no weight decay. Parameters `added` to the weights from which the run starts have their own
    rate and decay in the settings; update rules apply to them too.

    Each parameter group has the parameters that are updated alike; sharded ones are separate, because one fused pass
    cannot mix them. The largest come first in a group: on CUDA one launch updates a few dozen tensors at most.
    """
    rules: dict[nn.Parameter, UpdateRule] = {}
    for module in model.modules():
        if isinstance(rule := getattr(module, "update_rule", None), UpdateRule):
            rules |= dict.fromkeys(module.parameters(recurse=False), rule)
    has_muon = settings.optimizer == "muon"
    matrices = hidden_matrices(model) if has_muon else set()
    members: dict[tuple[float, float, bool, bool], list[nn.Parameter]] = {}
    for parameter in filter(lambda each: each.requires_grad, model.parameters()):
        own, decay, rate = rules.get(parameter), settings.weight_decay, 1.0
        if parameter in added:
            decay = decay if settings.added_weight_decay is None else settings.added_weight_decay
            rate = (settings.added_learning_rate or settings.learning_rate) / settings.learning_rate
        decays = own.decays if own else parameter.ndim > 1 or not getattr(settings, "decays_matrices_alone", False)
        key = (decay if decays else 0.0, rate * own.rate if own else rate, is_sharded(parameter), parameter in matrices)
        members.setdefault(key, []).append(parameter)
    parts = [
        {"params": sorted(alike, key=nn.Parameter.numel, reverse=True), "weight_decay": decay, RATE: rate}
        | ({IS_MUON: of_muon} if has_muon else {})
        for (decay, rate, _, of_muon), alike in members.items()
    ]
    name, arguments = OPTIMIZERS[settings.optimizer]
    if has_muon:
        return Muon(parts, settings.learning_rate, joined_rows(model), **arguments(settings))
    found: torch.optim.Optimizer = getattr(torch.optim, name)(parts, lr=settings.learning_rate, **arguments(settings))
    return found


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group to `rate`, times the group's factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get(RATE, 1.0)
