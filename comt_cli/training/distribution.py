"""Several processes that train one model: each takes its share of every batch.

Each holds the whole model (DistributedDataParallel), or a part of it (`sharding`). The global batch, its samples and
their order are the recipe's, whatever the number of processes.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from comt_cli.training.sharding import is_fsdp, without_reduction
from comt_cli.training.world import World


def distribute(module: nn.Module, world: World) -> nn.Module:
    """The module, its gradients averaged over all processes after each backward pass outside `without_sync`; a sharded
    one averages them itself, those of single numbers apart (`gradients.complete`)."""
    if world.size == 1 or is_fsdp(module):
        return module
    # It says so of a matrix with one row, whose strides say nothing.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)
    devices = [world.device.index] if world.device.type == "cuda" else None
    # Buffers are each process's own: batch normalisation trains with the batch's statistics, and before an evaluation
    # all take the main process's running ones (`image_task`). torch 2.13 has another name for it, and warns of the old.
    known = inspect.signature(DistributedDataParallel).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {name: False}
    return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True, **options)


def without_sync(module: nn.Module, active: bool) -> contextlib.AbstractContextManager[object]:
    """While `active`, backward passes only add to this process's own gradients."""
    if active and isinstance(module, DistributedDataParallel):
        return module.no_sync()
    if active and is_fsdp(module):
        return without_reduction(module)
    return contextlib.nullcontext()
