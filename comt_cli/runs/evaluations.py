"""Results of language models on tasks, a JSON file each: `comt evaluate --tasks` writes them, tables read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comt_cli.errors import UserError
from comt_cli.files import read_json

FOLDER = "evaluations"
"""Below a run directory; below the cache for other models."""
Result = dict[str, Any]
"""A model on a task: `task`, its `version`, `num_fewshot`, `limit` and `count` of its items, `lm_eval` (the version),
`model`, `weights` (hash of its files), `device`; `items`, the hash of all requests, answers and metrics, so that equal
ones are of the same items; and by name the `metrics`: `value`, `better`, `aggregation` as the harness calls it, and of
every item its number in `values`, of weighted ones the sum over the words or bytes that `weights` counts."""


def read_result(path: Path) -> Result:
    """Read a result. Raises `UserError` where it is damaged."""
    try:
        found = dict(read_json(path))
        if absent := {"task", "items", "count", "limit", "num_fewshot", "lm_eval", "metrics"} - found.keys():
            raise ValueError(f"it has no {min(absent)}")
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {error}", "Delete it, and evaluate once more.") from None
    return found


def results_of(run: Path) -> list[Result]:
    """The results in a run directory, in the order of their files. Raises `UserError` where one is damaged."""
    return [read_result(path) for path in sorted((run / FOLDER).glob("*.json"))]


def label_of(result: Mapping[str, Any]) -> str:
    """The task, with how many examples its prompts have, and how many items, where these are not all."""
    shots, limit = result["num_fewshot"], result["limit"]
    return f"{result['task']}{f', {shots}-shot' if shots else ''}{f', first {limit}' if limit else ''}"
