"""The tasks, one file each. A file added here, with its half in `training/tasks`, needs no other entry."""

from comt_cli.tasks.base import FIRST, Task, task_of, tasks

__all__ = ["FIRST", "Task", "task_of", "tasks"]
