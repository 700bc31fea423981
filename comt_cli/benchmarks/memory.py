"""How much memory a forward pass keeps for the backward pass, and how much a step takes at its peak."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

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

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
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
