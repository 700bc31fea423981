"""The settings of each task's runs; the optimisers by name, and the keys of Adam that several tasks share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat

from comt_cli.recipe.settings import Count, NonNegative, StepsOrShare, Training, Width


def _adam(settings: Any) -> dict[str, Any]:
    return {"betas": (settings.beta1, settings.beta2), "eps": settings.epsilon, "fused": True}


def _sgd(settings: Any) -> dict[str, Any]:
    """`g = gradient + weight_decay * w`, `v = momentum * v + g` from `v = g`, `w = w - rate * v` (Nesterov's: `w - rate
    * (g + momentum * v)`); all parameters decay, biases and norms too, as in the published scripts."""
    return {"momentum": settings.momentum, "nesterov": settings.nesterov, "fused": True}


OPTIMIZERS = {"adam": ("Adam", _adam), "adamw": ("AdamW", _adam), "muon": ("AdamW", _adam), "sgd": ("SGD", _sgd)}
"""Optimiser name -> class of `torch.optim`, and its arguments besides learning rate and weight decay. For `muon` these
are of the parameters that are no matrices (`training.muon`)."""

Dropped = Annotated[float, Field(ge=0, lt=1)]  # the probability with which dropout sets a number to zero

AdamName = Literal["adam", "adamw", "muon"]

UNEQUAL_BATCHES = {"compile": "every batch has another shape, and each would be compiled again"}
"""Keys refused for tasks whose batches have several shapes."""


class AdamSettings(Training):
    """Adam or AdamW, its schedules, and the average of the last weights."""

    moments: ClassVar[Mapping[str, Any]] = {**Training.moments, "average_every": StepsOrShare | None}
    later: ClassVar[frozenset[str]] = Training.later | {"average_last", "average_every"}
    refused: ClassVar[Mapping[str, str]] = {}
    """Keys that must keep their defaults in a task, with the reason."""

    learning_rate: PositiveFloat = 1e-3
    schedule: Literal["cosine", "linear", "noam", "constant"] = "cosine"
    optimizer: AdamName = "adam"
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    epsilon: PositiveFloat = 1e-8
    average_last: Count = 1
    average_every: Count | None = None
    activation_checkpointing: bool = False
    sharding: Literal["none", "fsdp"] = "none"

    @property
    def averaged_steps(self) -> tuple[int, ...]:
        if self.average_every is None:
            return ()
        return tuple(self.steps - back * self.average_every for back in reversed(range(self.average_last)))

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if self.select == "best" and self.average_last > 1:
            yield "average_last: applies to select: last, not to select: best; leave one of the two keys out"
        if (self.average_last > 1) != (self.average_every is not None):
            yield "average_every: is the number of steps between averaged weights; give it together with average_last"
        elif self.average_every is not None and (self.average_last - 1) * self.average_every >= self.steps:
            said = f"{self.average_last} weights, {self.average_every} steps apart, need more than {self.steps} steps"
            yield f"average_last: {said}"
        if self.optimizer == "muon" and self.shards:
            yield "sharding: Muon needs whole matrices, and fsdp shards them; use optimizer: adamw, or sharding: none"
        for key, reason in self.refused.items():
            if getattr(self, key) != type(self).model_fields[key].default:
                yield f"{key}: {reason}; leave it out"

    def optimizer_state(self, trained: int, matrices: int) -> int:
        return 2 * trained - (matrices if self.optimizer == "muon" else 0)

    @property
    def recomputes(self) -> bool:
        return self.activation_checkpointing

    @property
    def shards(self) -> bool:
        return self.sharding == "fsdp"


class StartedTraining(AdamSettings):
    """Training that may start from weights, which are `pretrained`: trained, frozen, or adapted by LoRA (Hu et al.
    2021). Parameters that are not in the start are `added`."""

    of_start: ClassVar = ("pretrained", "lora_rank", "lora_alpha", "added_learning_rate", "added_weight_decay")
    later: ClassVar[frozenset[str]] = AdamSettings.later | {*of_start}

    pretrained: Literal["full", "frozen", "lora"] = "full"
    lora_rank: Width = 8
    lora_alpha: PositiveFloat | None = None
    added_learning_rate: PositiveFloat | None = None
    added_weight_decay: NonNegative | None = None

    @property
    def lora(self) -> tuple[int, float] | None:
        rank = {"full": None, "frozen": 0, "lora": self.lora_rank}[self.pretrained]
        return None if rank is None else (rank, 1.0 if self.lora_alpha is None else self.lora_alpha / self.lora_rank)

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        for key in {"lora_rank", "lora_alpha"} & self.stored().keys():
            if self.pretrained != "lora":
                yield f"{key}: applies to pretrained: lora, and pretrained is {self.pretrained}; leave it out"
