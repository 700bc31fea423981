"""The half of each task that trains, in a file of the same name as the task's in `comt_cli/tasks`."""

from __future__ import annotations

import importlib
from typing import Any

from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task
from comt_cli.tasks.base import AnyDataset
from comt_cli.training.parallel import World
from comt_cli.training.tasks.base import TaskRun


def module_of(task: Task[Any]) -> str:
    """The name of the module that trains a task."""
    return f"{__name__}.{task.name}"


def run_class(task: Task[Any]) -> type[TaskRun[Any]]:
    """The class of a task's runs: the only one that its module defines."""
    module = importlib.import_module(module_of(task))
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, TaskRun) and value.__module__ == module.__name__
    )
    return found


def task_run(spec: RunSpec, dataset: AnyDataset, world: World) -> TaskRun[Any]:
    """A run with its data set, in one process of a world."""
    return run_class(spec.task)(spec, dataset, world)
