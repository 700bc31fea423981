"""Initial values, drawn so that two runs with one seed start from the same network.

Each tensor has a random stream of its own, keyed by the seed and the tensor's name. Adding a gate, or a layer at the
end, therefore leaves every other tensor as it was: runs of different methods with one seed are paired.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import Tensor, nn


class Draw:
    """A source of named random streams for one module; without a seed all are PyTorch's global one."""

    def __init__(self, seed: int | None = None, path: str = "") -> None:
        self.seed = seed
        self.path = path

    def generator(self, name: str) -> torch.Generator:
        """The stream of one tensor: a CPU generator, so that the values are the same on every device."""
        if self.seed is None:
            return torch.default_generator
        digest = hashlib.sha256(f"{self.seed}/{self.path}.{name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def normal_(self, tensor: Tensor, name: str, std: float) -> None:
        """Fill in place from N(0, std^2)."""
        self._fill(tensor, torch.randn(tensor.shape, generator=self.generator(name), device="cpu") * std)

    def truncated_(self, tensor: Tensor, name: str, std: float) -> None:
        """Fill in place from N(0, std^2) without what lies beyond two `std`, as BERT starts; what is left has a
        standard deviation of 0.88 `std`."""
        values = torch.empty(tensor.shape, device="cpu")
        nn.init.trunc_normal_(values, 0.0, std, -2 * std, 2 * std, generator=self.generator(name))
        self._fill(tensor, values)

    def uniform_(self, tensor: Tensor, name: str, bound: float) -> None:
        """Fill in place from U(-bound, bound)."""
        values = torch.rand(tensor.shape, generator=self.generator(name), device="cpu")
        self._fill(tensor, (values * 2 - 1) * bound)

    @staticmethod
    def _fill(tensor: Tensor, values: Tensor) -> None:
        with torch.no_grad():
            tensor.copy_(values)


class _Starts(type):
    """Class of modules that start as they are made, from PyTorch's global stream, but for those on the meta device."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        module = super().__call__(*arguments, **options)
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if own and not any(tensor.is_meta for tensor in own):
            module.initialise(Draw())
        return module


class Initialised(nn.Module, metaclass=_Starts):
    """A module that sets its own initial values. The model-wide initialisation calls it and adds nothing after it."""

    def initialise(self, draw: Draw) -> None:
        """Set every parameter that this module itself holds (its children are called on their own)."""
        raise NotImplementedError


def initialise(model: nn.Module, seed: int, prefix: str = "") -> None:
    """Set every parameter of `model`: each module is asked in turn. `prefix` is its own path, where it is a part.
    Raises `TypeError` where a module holds parameters and does not say how they start. Nothing is left to a default."""
    for path, module in model.named_modules(prefix=prefix):
        if isinstance(module, Initialised):
            module.initialise(Draw(seed, path))
        elif isinstance(module, nn.RMSNorm | nn.LayerNorm):
            nn.init.ones_(module.weight)
            if isinstance(module, nn.LayerNorm):
                nn.init.zeros_(module.bias)
        elif any(True for _ in module.parameters(recurse=False)):
            raise TypeError(f"{path} ({type(module).__name__}) holds parameters but has no initialise()")


def xavier_std(fan_in: int, fan_out: int, gain: float = 1.0) -> float:
    """Standard deviation of Glorot's normal initialisation."""
    return gain * math.sqrt(2 / (fan_in + fan_out))
