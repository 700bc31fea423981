"""The half of each task that trains, in a file of the same name as the task's in `comt_cli/tasks`."""

from __future__ import annotations

from typing import Any

from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task
from comt_cli.tasks.base import AnyDataset, only_class
from comt_cli.training.parallel import World
from comt_cli.training.tasks.base import TaskRun


def run_class(task: Task[Any]) -> type[TaskRun[Any]]:
    """The class of a task's runs: the only one that its module defines."""
    return only_class(f"{__name__}.{task.name}", TaskRun)  # type: ignore[type-abstract]


def task_run(spec: RunSpec, dataset: AnyDataset, world: World) -> TaskRun[Any]:
    """A run with its data set, in one process of a world."""
    return run_class(spec.task)(spec, dataset, world)
