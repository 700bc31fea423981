"""Networks with initial values, and as if trained a little."""

from __future__ import annotations

import math
from typing import Any

import torch

from comt_cli.layers.initialise import initialise
from comt_cli.methods.base import Wiring
from comt_cli.models.build import empty_network


def initialised(settings: Any, wiring: Wiring, seed: int, **dimensions: int) -> Any:
    """A model whose every number was initialised; what was not stays NaN."""
    model = empty_network(settings, wiring, **dimensions).to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(math.nan)
    initialise(model, seed)
    return model


def shaken(model: Any) -> Any:
    """As if trained a little: gates far from their start, gains that are not one, running statistics of some data."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.1)
    return model
