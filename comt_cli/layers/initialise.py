"""Initial values. Two runs with one seed start from the same network.

Each tensor has its own random stream, keyed by the seed and the tensor's name. Adding a gate, or a layer at the end,
therefore changes no other tensor: runs of different methods with one seed are paired.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import Tensor, nn


class Draw:
    """Source of named random streams for one module. Without a seed all are PyTorch's global stream."""

    def __init__(self, seed: int | None = None, path: str = "") -> None:
        self.seed = seed
        self.path = path

    def generator(self, name: str) -> torch.Generator:
        """Stream of one tensor: a CPU generator, so values are equal on every device."""
        if self.seed is None:
            return torch.default_generator
        digest = hashlib.sha256(f"{self.seed}/{self.path}.{name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def normal_(self, tensor: Tensor, name: str, std: float) -> None:
        """Fill in place from N(0, std^2)."""
        self._fill(tensor, torch.randn(tensor.shape, generator=self.generator(name), device="cpu") * std)

    def truncated_(self, tensor: Tensor, name: str, std: float) -> None:
        """Fill in place from N(0, std^2) truncated at two `std`, as in BERT. The resulting std is 0.88 `std`."""
        values = torch.empty(tensor.shape, device="cpu")
        nn.init.trunc_normal_(values, 0.0, std, -2 * std, 2 * std, generator=self.generator(name))
        self._fill(tensor, values)

    def uniform_(self, tensor: Tensor, name: str, bound: float) -> None:
        values = torch.rand(tensor.shape, generator=self.generator(name), device="cpu")
        self._fill(tensor, (values * 2 - 1) * bound)

    @staticmethod
    def _fill(tensor: Tensor, values: Tensor) -> None:
        with torch.no_grad():
            tensor.copy_(values)


class _Starts(type):
    """Metaclass that initialises modules at construction from PyTorch's global stream, except on the meta device."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        module = super().__call__(*arguments, **options)
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if own and not any(tensor.is_meta for tensor in own):
            module.initialise(Draw())
        return module


class Initialised(nn.Module, metaclass=_Starts):
    """Module that sets its own initial values. The model-wide initialisation calls it and adds nothing."""

    def initialise(self, draw: Draw) -> None:
        """Set every parameter held by this module itself; its children are called separately."""
        raise NotImplementedError


def initialise(model: nn.Module, seed: int, prefix: str = "") -> None:
    """Set every parameter of `model`, module by module. `prefix` is the path of `model` if it is part of another one.
    Raises `TypeError` for a module that holds parameters and does not initialise them: there is no default."""
    for path, module in model.named_modules(prefix=prefix):
        if isinstance(module, Initialised):
            module.initialise(Draw(seed, path))
        elif isinstance(module, nn.RMSNorm | nn.LayerNorm):
            nn.init.ones_(module.weight)
            if isinstance(module, nn.LayerNorm):
                nn.init.zeros_(module.bias)
        elif any(True for _ in module.parameters(recurse=False)):
            raise TypeError(f"{path} ({type(module).__name__}) has parameters but no initialise()")


def xavier_std(fan_in: int, fan_out: int, gain: float = 1.0) -> float:
    """Standard deviation of Glorot's normal initialisation."""
    return gain * math.sqrt(2 / (fan_in + fan_out))
