"""Results of language models on tasks, a file each: written by `comt evaluate --tasks`, read by tables. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from comt_cli.errors import UserError
from comt_cli.files import Unreadable, make_folder, read_json, write_json

FOLDER = "evaluations"
"""Below a run directory; below the cache for other models."""
RELATIVE = {"perplexity", "weighted_perplexity", "bits_per_byte"}
"""Aggregations of log-likelihoods, whose differences are ratios."""


@dataclass(frozen=True)
class TaskMetric:
    """A metric of lm-evaluation-harness over the items of a task.

    Attributes:
        value: as the harness aggregates it; None where that is not finite.
        better: None where the harness does not say.
        aggregation: the harness's name of it: `mean`, `perplexity` ...
        values: of each item its number, in the order of the items; of weighted ones the sum over its words or bytes,
            whose number is its weight in `weights`. Empty where an item has no finite number.
    """

    value: float | None
    better: Literal["higher", "lower"] | None
    aggregation: str
    values: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class TaskResult:
    """A model on a task. `items` is the hash of all requests, answers and metrics of the task, so that results with the
    same are of the same items; `weights` that of the model's files."""

    task: str
    version: str
    items: str
    count: int
    limit: int | None
    num_fewshot: int
    model: str
    weights: str
    lm_eval: str
    device: str
    metrics: dict[str, TaskMetric]

    @property
    def label(self) -> str:
        """The task, with how many examples its prompts have, and how many items, where these are not all."""
        shots = f", {self.num_fewshot}-shot" if self.num_fewshot else ""
        return f"{self.task}{shots}{f', first {self.limit}' if self.limit else ''}"


_RESULT = TypeAdapter(TaskResult)


def write_result(path: Path, result: TaskResult) -> None:
    """Write a result, whole or not at all. Raises `StorageError`."""
    make_folder(path.parent)
    write_json(path, asdict(result))


def read_result(path: Path) -> TaskResult:
    """Read a result. Raises `FileNotFoundError`, and `UserError` where it is damaged."""
    try:
        return _RESULT.validate_python(read_json(path))
    except (Unreadable, ValueError) as error:
        said: Any = error.errors()[0]["msg"] if hasattr(error, "errors") else error
        raise UserError(f"{path} cannot be read: {said}", "Delete it, and evaluate once more.") from None


def results_of(run: Path) -> Iterator[TaskResult]:
    """The results in a run directory, oldest first. Raises `UserError` where one is damaged."""
    paths = (run / FOLDER).glob("*.json")
    yield from map(read_result, sorted(paths, key=lambda path: (path.stat().st_mtime_ns, path.name)))
