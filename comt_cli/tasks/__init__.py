"""The tasks, one file each. A file put here, with its half in `training/tasks`, is found; no entry names it."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any

from comt_cli.tasks.base import Task

FIRST = "train-lm"
"""The command that stands first where tasks are listed, and that a recipe is taken for which does not say its own."""


@functools.cache
def tasks() -> Mapping[str, Task[Any]]:
    """Every task by its command. Imports neither torch nor pydantic."""
    found: dict[str, Task[Any]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        if module_info.ispkg:
            continue
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for value in vars(module).values():
            is_task = isinstance(value, type) and issubclass(value, Task) and not inspect.isabstract(value)
            if is_task and value.__module__ == module.__name__:
                found[value.command] = value()
    return dict(sorted(found.items(), key=lambda item: (item[0] != FIRST, item[0])))


def task_of(command: str) -> Task[Any]:
    """The task that a command trains. Raises `ValueError` where there is no such command."""
    found = tasks().get(command)
    if found is None:
        raise ValueError(f"there is no command {command!r} that trains; there are {', '.join(tasks())}")
    return found


__all__ = ["FIRST", "Task", "task_of", "tasks"]
