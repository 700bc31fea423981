"""How much memory a forward pass keeps for the backward pass, and how much a step takes at its peak."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MIB = 2**20


def saved_bytes(forward: Callable[[], object], parameters: Iterable[Tensor]) -> int:
    """Bytes that `forward` keeps for the backward pass.

    Counts storages, each once however many tensors look at it, and whole, since a view keeps all of it alive. What
    belongs to `parameters` is there anyway and is not counted; copies of them (a type for autocast, matrices put
    side by side) are.
    """
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # a storage freed within the pass would give its address to another

    # Gives nothing: a tensor would be kept by the node of the graph that the tensor itself keeps, a cycle through C++
    # that no collector sees, and with it all that the pass has saved.
    def pack(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor.detach())

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda nothing: nothing):
        result = forward()
    del result
    return sum(kept.values())


def peak_beyond(part: Callable[[], object], device: torch.device) -> int | None:
    """The most bytes that `part` takes on a CUDA device beyond what is held before it; None on other devices, which do
    not keep count."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    part()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def peak_of(part: Callable[[], object], device: torch.device) -> int:
    """The most bytes that `part` takes beyond what is held before it. On CUDA as its allocator counts them; elsewhere
    those of the tensors that are alive at once, without what an operation needs for itself. Slow there."""
    on_cuda = peak_beyond(part, device)
    if on_cuda is not None:
        return on_cuda
    alive = _Alive()
    with alive:
        part()
    return alive.peak


class _Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that operations make, as long as a tensor looks at them: `peak` is the most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        self.alive = {key: each for key, each in self.alive.items() if not each[0].expired()}  # type: ignore[no-untyped-call]
        for storage in _storages(result):
            if storage._cdata not in given:  # a view of what was there before is nothing new
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return result


def _storages(of: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(of) if isinstance(leaf, Tensor)]


def mebibytes(count: int | None) -> float | None:
    """MiB to one decimal; to three below one."""
    if count is None:
        return None
    return round(count / MIB, 1 if count >= MIB else 3)


def free(device: torch.device) -> None:
    """Give what is no longer used back to the device, so that the next thing measured finds all of it."""
    import gc

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
