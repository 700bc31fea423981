"""The processes that train one model together, as each of them sees it."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from comt_cli.training.devices import pick_device
from comt_cli.training.processes import check_device, check_share, rank_and_size


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

    def copy_from_main(self, tensor: Tensor) -> None:
        """Fill the tensor, in place, with the main process's."""
        if self.size > 1:
            dist.broadcast(tensor, src=0)

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()


@contextlib.contextmanager
def join_world(device_name: str | None) -> Iterator[World]:
    """This process's `World`, from the launcher's environment variables; a world of one without them."""
    launched = rank_and_size()
    if launched is None:
        yield World(pick_device(device_name))
        return
    rank, size = launched
    check_device(device_name, size)
    device = pick_device(device_name, int(os.environ.get("LOCAL_RANK", rank)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not faulthandler.is_enabled():  # a fault in native code is told with every thread's stack, in whichever process
        faulthandler.enable(file=2)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=datetime.timedelta(minutes=30))
    world = World(device, rank, size)
    try:
        yield world
        world.barrier()  # the first holds the others' meeting point: nobody leaves before all have come to the end
    finally:
        dist.destroy_process_group()


def share_of_batch(batch_size: int, world: World) -> int:
    """Rows of the global batch that each process takes.

    Raises:
        UserError: the batch does not divide evenly.
    """
    check_share(batch_size, world.size)
    return batch_size // world.size
