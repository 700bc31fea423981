"""The tasks, one file each. A file put here, with its half in `training/tasks`, is found; no entry names it."""

from comt_cli.tasks.base import FIRST, Task, task_of, tasks

__all__ = ["FIRST", "Task", "task_of", "tasks"]
