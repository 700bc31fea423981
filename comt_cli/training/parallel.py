"""Train one model in several processes: each has all of it (DistributedDataParallel) or a shard (FSDP2).

FSDP2 shards weights, gradients and optimiser states. Each block is a unit, gathered while it computes; everything
before and after the blocks, the loss included, is another unit. Scalar parameters cannot be sharded: every process
keeps them (see `update.average_full`). PyTorch's modules for this are imported at their first use, because that takes
seconds.
"""

from __future__ import annotations

import contextlib
import datetime
import inspect
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from comt_cli.errors import ProcessLost, UserError
from comt_cli.models.base import Model
from comt_cli.models.build import materialise
from comt_cli.training.devices import pick_device
from comt_cli.training.objective import Objective, prepare_compiler
from comt_cli.training.processes import check_device, rank_and_size

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

VERSIONS_OF_A_BLOCK = 8
"""Batch shapes, with and without gradients, for which a block may be compiled; each layer may have its own."""
PATIENCE = datetime.timedelta(minutes=30)
"""Time for which a process waits for the others, which may hash or prepare data on their own disks, or score."""
_joined: list[Any] = []
"""The group that this process has joined, kept after leaving it (`join_world`)."""


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
        """The sum over all processes, computed in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def largest(self, value: int) -> int:
        """The largest of all processes' values."""
        if self.size == 1:
            return value
        box = torch.tensor(value, device=self.device)
        dist.all_reduce(box, dist.ReduceOp.MAX)
        return int(box)

    def broadcast(self, value: object) -> object:
        """The main process's value, in every process; `value` is pickled."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def copy_from_main(self, tensor: Tensor) -> None:
        """Fill the tensor in place with the main process's."""
        if self.size > 1:
            dist.broadcast(tensor, src=0)

    def check_equal(self, facts: list[str]) -> None:
        """Raise `UserError` in every process unless all have the same `facts`."""
        every = [facts] * self.size
        if self.size > 1:
            dist.all_gather_object(every, facts)
        for rank, others in enumerate(every):
            for first, other in itertools.zip_longest(every[0], others, fillvalue="no other run"):
                if first != other:
                    wrong = f"process 0 of {self.size} has {first}, but process {rank} has {other}"
                    raise UserError(wrong, "Give all processes the same version of comt, recipe, options and data.")

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


@contextlib.contextmanager
def join_world(device_name: str | None) -> Iterator[World]:
    """This process's `World`, from the launcher's environment variables; a world of size 1 without them. Raises
    `ProcessLost`: at once if another process dies, after `PATIENCE` if it has not started or its machine is silent.

    A group is kept until the interpreter ends: its destructor runs with Python's lock held, and may wait for gloo's
    thread, which waits for the lock. A process can therefore join only once.
    """
    launched = rank_and_size()
    if launched is None:
        yield World(pick_device(device_name))
        return
    rank, size = launched
    check_device(device_name, size)
    device = pick_device(device_name, int(os.environ.get("LOCAL_RANK", rank)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        store, *_ = next(rendezvous("env://", timeout=PATIENCE))
        store.set(f"started {rank}", "")
        store.wait([f"started {each}" for each in range(size)], PATIENCE)
        dist.init_process_group(backend, timeout=PATIENCE, store=store, rank=rank, world_size=size)
        _joined.append(dist.group.WORLD)
        world = World(device, rank, size)
        try:
            yield world
            world.barrier()  # the first process serves the group's store: it must leave last
        finally:
            dist.destroy_process_group()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].partition(". This is typically")[0]
        if not isinstance(error, dist.DistError) and "gloo" not in reason.lower():
            raise
        if cause := str(error).partition("Last error:")[2].strip():  # as NCCL writes it
            reason += f": {cause.splitlines()[-1]}"
        hint = f"See the others' output; between machines, also --master-addr and {backend.upper()}_SOCKET_IFNAME."
        saved = "What was saved is intact: the same commands resume from there."
        raise ProcessLost(f"process {rank} of {size} cannot reach another one: {reason}", f"{hint} {saved}") from error


# ---- sharded models


def shard(loss: Objective, world: World, dtype: torch.dtype, seed: int, *, compiled: bool) -> None:
    """Initialise the meta model in `loss` as on one process, and keep this process's shard. Units are initialised one
    after another, so that a device never holds more than one in full. With `compiled` each block is compiled
    separately, because the gathering between them cannot be compiled. Raises `UserError` (see `units_of`)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = loss.model
    assert isinstance(model, Model)
    units, blocks = units_of(model), _blocks(model)
    if compiled:
        prepare_compiler(versions=VERSIONS_OF_A_BLOCK * len(blocks))
    # A block passes on earlier activations that a residual connection needs; after FSDP2's hooks they are views. That
    # is safe unless they are changed in place: the model does not do so, and autograd refuses it to the next block.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    mesh = init_device_mesh(world.device.type, (world.size,))

    def shard_unit(unit: nn.Module) -> None:
        fully_shard(unit, mesh=mesh, ignored_params={each for each in unit.parameters() if each.dim() == 0})

    for path, unit in units.items():
        materialise(unit, world.device, seed, path)
        unit.to(dtype)
        if unit in blocks:
            _wrap_forward(unit, recomputed=model.activation_checkpointing, compiled=compiled)
            shard_unit(unit)
    model.activation_checkpointing = False  # done by `_wrap_forward`
    shard_unit(loss)


def units_of(model: Model) -> dict[str, nn.Module]:
    """The modules that are initialised separately, by path: every block, and each other part of the model. Raises
    `UserError` if two of them share a parameter, which each would initialise."""
    blocks, stacks = _blocks(model), {*model.stacks.values()}
    units = {path: module for path, module in model.named_modules() if module in blocks}
    units |= {name: part for name, part in model.named_children() if part not in stacks}
    owners: dict[nn.Parameter, str] = {}
    for path, unit in units.items():
        if shared := [name for name, each in unit.named_parameters() if owners.setdefault(each, path) != path]:
            said = f"train.sharding: fsdp cannot shard {path}.{shared[0]}, which another part of the model shares"
            raise UserError(said, "Only parameters within a block may be shared; set train.sharding: none.")
    return units


def _blocks(model: Model) -> set[nn.Module]:
    return {block for stack in model.stacks.values() for block in stack}


def _wrap_forward(block: nn.Module, *, recomputed: bool, compiled: bool) -> None:
    """Recompute and compile the block's own computation inside FSDP2's hooks: a block is then gathered once for its
    backward pass, and the gathering is not compiled."""
    forward: Callable[..., Any] = block.forward
    if recomputed:
        inner = forward

        def forward(*arguments: Any) -> Any:
            return checkpoint(inner, *arguments, use_reentrant=False) if block.training else inner(*arguments)

    if compiled:
        forward = torch.compile(forward, dynamic=False, fullgraph=True)
    block.forward = forward


# ---- sharded tensors


def is_sharded(tensor: object) -> TypeGuard[DTensor]:
    """Whether each process holds a shard of the tensor."""
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local_tensor(tensor: Tensor) -> Tensor:
    """This process's shard (sharing its memory), or the tensor itself if it is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def full_tensors(values: Mapping[str, Any], *, keep: bool) -> dict[str, Any]:
    """The values, with sharded tensors gathered onto the CPU. All processes call it; {} for those not to `keep`."""
    kept = {}
    for name, value in values.items():
        full = _gathered(value) if is_sharded(value) else value
        if keep:
            kept[name] = full.cpu() if is_sharded(value) else full
    return kept


def _gathered(tensor: DTensor) -> Tensor:
    """The full tensor of one sharded by `fully_shard` along its first dimension, as by `torch.chunk`: if that does not
    divide evenly, the last shards are shorter or empty. It uses a plain collective, because the functional ones of
    `DTensor.full_tensor` once aborted a process under gloo."""
    size, rows = tensor.device_mesh.size(), tensor.shape[0]
    local = tensor.to_local().detach()
    share = math.ceil(rows / size)
    padded = local.new_zeros(share, *local.shape[1:])
    padded[: len(local)] = local
    whole = local.new_empty(size * share, *local.shape[1:])
    dist.all_gather(list(whole.chunk(size)), padded, group=tensor.device_mesh.get_group())
    return whole[:rows]


def shard_of(full: Tensor, like: Tensor) -> Tensor:
    """This process's shard of a tensor that every process has in full, with the sharding and device of `like`."""
    if not is_sharded(like):
        return full
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def distribute(module: nn.Module, world: World) -> nn.Module:
    """The module with gradients averaged over all processes after each backward pass outside `without_sync`. A sharded
    module averages them itself, except for scalars (`update.average_full`)."""
    from torch.distributed.fsdp import FSDPModule

    if world.size == 1 or isinstance(module, FSDPModule):
        return module
    # DistributedDataParallel warns about matrices with one row, whose strides do not matter.
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)
    devices = [world.device.index] if world.device.type == "cuda" else None
    # Buffers are not synchronised: batch normalisation trains with the batch's statistics, and evaluations copy the
    # main process's running ones (`tasks.images`). torch 2.13 renamed the option, and warns about the old name.
    known = inspect.signature(DistributedDataParallel).parameters
    options: Any = {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}
    return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True, **options)


@contextlib.contextmanager
def without_sync(module: nn.Module, active: bool) -> Iterator[None]:
    """While `active`, backward passes only add to this process's own gradients, which are unsharded then."""
    if not active:
        yield
    elif isinstance(module, DistributedDataParallel):
        with module.no_sync():
            yield
    else:
        module.set_requires_gradient_sync(False)  # type: ignore[operator]
        yield
        module.set_requires_gradient_sync(True)  # type: ignore[operator]
