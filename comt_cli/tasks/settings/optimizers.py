"""The optimisers that recipes can name, in one table. Torch-free: recipes are read without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal


@dataclass(frozen=True)
class Optimizer:
    """A class of `torch.optim`, and the arguments that settings give it beside the learning rate and weight decay."""

    torch_class: str
    arguments: Callable[[Any], dict[str, Any]]


def _adam(settings: Any) -> dict[str, Any]:
    return {"betas": (settings.beta1, settings.beta2), "eps": settings.epsilon, "fused": True}


def _sgd(settings: Any) -> dict[str, Any]:
    """`g = gradient + weight_decay * w`, `v = momentum * v + g` from `v = g`, `w = w - rate * v` (Nesterov's: `w - rate
    * (g + momentum * v)`); the decay is of all parameters, biases and norms too, as in the published scripts."""
    return {"momentum": settings.momentum, "nesterov": settings.nesterov, "fused": True}


OPTIMIZERS: Mapping[str, Optimizer] = {
    "adam": Optimizer("Adam", _adam),
    "adamw": Optimizer("AdamW", _adam),
    "sgd": Optimizer("SGD", _sgd),
}
"""All in the fused form, one pass over the states."""

if TYPE_CHECKING:
    AdamName = str
else:
    AdamName = Literal[tuple(name for name, each in OPTIMIZERS.items() if each.arguments is _adam)]
