"""Several processes that train one model: each takes its share of every batch.

Each holds the whole model (DistributedDataParallel), or a part of it (`sharding`). The global batch, its samples and
their order are the recipe's, whatever the number of processes.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from comt_cli.errors import UserError
from comt_cli.training.devices import pick_device
from comt_cli.training.processes import check_device, launched_by_torchrun
from comt_cli.training.sharding import is_fsdp, without_reduction


@dataclass(frozen=True)
class World:
    """This process among all: `rank` of `size`, on `device`."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, value: object) -> object:
        """The main process's value, in every process; `value` is pickled between processes of one run."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()


@contextlib.contextmanager
def join_world(device_name: str | None) -> Iterator[World]:
    """This process's `World`, from the launcher's environment variables; a world of one without them."""
    if not launched_by_torchrun():
        yield World(pick_device(device_name))
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    check_device(device_name, size)
    device = pick_device(device_name, int(os.environ.get("LOCAL_RANK", rank)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=datetime.timedelta(minutes=30))
    try:
        yield World(device, rank, size)
    finally:
        dist.destroy_process_group()


def share_of_batch(batch_size: int, world: World) -> int:
    """Rows of the global batch that each process takes.

    Raises:
        UserError: the batch does not divide evenly.
    """
    if batch_size % world.size:
        raise UserError(
            f"a batch of {batch_size} rows cannot be shared evenly by {world.size} processes",
            "Choose --gpus so that it divides train.batch_size, which stays as the recipe says.",
        )
    return batch_size // world.size


def distribute(module: nn.Module, world: World) -> nn.Module:
    """The module, its gradients averaged over all processes after each backward pass outside `without_sync`; a sharded
    one averages them itself, those of single numbers apart (`gradients.complete`)."""
    if world.size == 1 or is_fsdp(module):
        return module
    # It says so of a matrix with one row, whose strides say nothing.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)
    devices = [world.device.index] if world.device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)


def without_sync(module: nn.Module, active: bool) -> contextlib.AbstractContextManager[object]:
    """While `active`, backward passes only add to this process's own gradients."""
    if active and isinstance(module, DistributedDataParallel):
        return module.no_sync()
    if active and is_fsdp(module):
        return without_reduction(module)
    return contextlib.nullcontext()
