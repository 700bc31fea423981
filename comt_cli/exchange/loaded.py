"""A trained model, of any task. What is known of a task's models beyond that is in `loaded_<task>.py`, a subclass that
is found by being there."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from comt_cli.exchange.checkpoint import name_of
from comt_cli.exchange.sources import ACCEPTED
from comt_cli.models.flops import parameter_count
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task, task_of


@dataclass(frozen=True)
class Loaded:
    """`model` has the types that the file stored.

    Attributes:
        command: what trains such models; None for those of any task.
        foreign: whether files of other programs can be such models too.
        name: short and fit for a folder; `description` says what the source holds.
        spec: the run, of our own checkpoints.
    """

    command: ClassVar[str | None] = None
    foreign: ClassVar[bool] = True

    model: Any
    name: str
    description: str
    spec: RunSpec | None = field(default=None, kw_only=True)

    @property
    def run(self) -> RunSpec:
        """The run, where the model is from a checkpoint of ours."""
        assert self.spec is not None
        return self.spec

    @classmethod
    def kind(cls) -> str:
        """What such a model is, with its article: `an image classifier`."""
        return task_of(cls.command).model_kind if cls.command is not None else "a model"

    @classmethod
    def accepted(cls) -> str:
        """Where such a model may come from, as a hint."""
        return ACCEPTED if cls.foreign else f"Give a checkpoint.pt or run directory of comt {cls.command}."

    @classmethod
    def check(cls, state: Mapping[str, Any], spec: RunSpec, path: Path) -> None:
        """Refuse what is wrong with a checkpoint of the task before its model is built, with a `UserError`."""

    @classmethod
    def from_checkpoint(cls, model: Any, state: Mapping[str, Any], spec: RunSpec, path: Path) -> Self:  # noqa: ARG003
        """The model of a checkpoint, with its weights, and what the file says besides. Raises `UserError`."""
        trained = spec.task.network_and_data(spec.settings)
        description = f"method {spec.method_words}, {trained}, {parameter_count(model):,} parameters"
        return cls(model, name_of(spec), description, spec=spec)


def kind_of(task: Task[Any]) -> type[Loaded]:
    """The class of a task's models."""
    name = f"{__name__}_{task.name}"
    if importlib.util.find_spec(name) is None:
        return Loaded
    kinds = [each for each in vars(importlib.import_module(name)).values() if isinstance(each, type)]
    return next(each for each in kinds if issubclass(each, Loaded) and each.command == task.command)
