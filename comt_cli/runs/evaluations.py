"""Results of language models on tasks, one JSON file each; `comt evaluate --tasks` writes them, tables read them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comt_cli.errors import UserError
from comt_cli.files import read_json

FOLDER = "evaluations"
"""The folder of results, in a run directory or, for other models, in the cache."""
Result = dict[str, Any]
"""A model on a task: `task`, its `version`, `num_fewshot`, `limit` and `count` of its items, `lm_eval` (the version),
`model`, `weights` (hash of its files), `device`; `items`, the hash of all requests, answers and metrics; and `metrics`
by name: `value`, `better`, `aggregation` as in the harness, `values` of the items, and for weighted means `weights`
(words or bytes of each item; `values` are then sums over them). Results with equal `items` can be compared."""


def read_result(path: Path) -> Result:
    """Read a result. Raises `UserError` if it is damaged."""
    try:
        found = dict(read_json(path))
        if absent := {"task", "items", "count", "limit", "num_fewshot", "lm_eval", "metrics"} - found.keys():
            raise ValueError(f"it has no {min(absent)}")
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {error}", "Delete it, and evaluate again.") from None
    return found


def results_of(run: Path) -> list[Result]:
    """The results in a run directory, sorted by file name. Raises `UserError` if one is damaged."""
    return [read_result(path) for path in sorted((run / FOLDER).glob("*.json"))]


def label_of(result: Mapping[str, Any]) -> str:
    """The task, with its number of examples per prompt and its limit, if there are any."""
    shots, limit = result["num_fewshot"], result["limit"]
    return f"{result['task']}{f', {shots}-shot' if shots else ''}{f', first {limit}' if limit else ''}"
