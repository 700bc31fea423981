"""A sweep that the command line gives a recipe: `--sweep train.learning_rate=1e-3,2e-3,4e-3`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from comt_cli.errors import UserError
from comt_cli.recipe.grid import OF_TEST
from comt_cli.recipe.problems import RecipeError
from comt_cli.recipe.schema import TaskOptions
from comt_cli.recipe.yaml_lines import Document, parse

TRIAL_SEEDS = (101, 102)
"""Of the trials of a sweep that the recipe does not have."""


def with_sweep(
    document: Document, arguments: Sequence[str], scale: str, task: TaskOptions, overrides: Sequence[str] = ()
) -> Document:
    """`document` at `scale` alone, with a sweep of these values in place of the one that it has there.

    Metric and seeds of the trials are those of the recipe's sweep; without one, the task's first metric and
    `TRIAL_SEEDS`. Columns that show a metric of validation, which chooses, show the same metric of the test split.
    Ablations of the recipe are left out: they compare rows under equal settings. `overrides` are the `--set` arguments.

    Raises:
        UserError: an argument is not KEY=VALUE,VALUE,...; two have the same key; `--set` gives the key too.
    """
    fixed = {override.partition("=")[0].strip() for override in overrides}
    settings: dict[str, Any] = {}
    said_by = {f"scales.{scale}.sweep": "--sweep", "metric": "--sweep"}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        form = UserError(
            f"--sweep {argument}: should be SECTION.KEY=VALUE,VALUE,...",
            "as in train.learning_rate=1e-3,2e-3,4e-3",
        )
        if not equals or not text.strip():
            raise form
        if key.strip() in settings:
            raise UserError(f"--sweep {key.strip()} is given twice", "Give all its values in one, with commas.")
        if key.strip() in fixed:
            raise UserError(f"{key.strip()} is given by --sweep and by --set", "Leave one of them out.")
        try:
            values = parse(f"[{text}]", "--sweep")
        except RecipeError:
            raise form from None
        if values.problems or not isinstance(values.data, list):
            raise form
        settings[key.strip()] = values.data
        said_by[f"scales.{scale}.sweep.settings.{key.strip()}"] = f"--sweep {argument}"
    data: dict[str, Any] = dict(document.data)
    scales: Any = data.get("scales")
    own: Any = scales.get(scale) if isinstance(scales, dict) else None
    if not isinstance(own, dict):  # which is reported elsewhere
        return document
    before = own.get("sweep", data.get("sweep"))
    said = before if isinstance(before, dict) else {}
    sweep = {"metric": task.metric, **said, "settings": settings}
    sweep["seeds"] = said.get("seeds") or list(TRIAL_SEEDS)
    own = {**own, "sweep": sweep, **_tested(own, task)}
    data = {"metric": task.metric, **data, "scales": {scale: own}}
    data.pop("ablations", None)
    return replace(document, data={**data, **_tested(data, task)}, arguments=document.arguments | said_by)


def _tested(place: Mapping[str, Any], task: TaskOptions) -> dict[str, Any]:
    """The `metric` of a recipe, and those of its columns or a scale's, as metrics of the test split."""
    found: dict[str, Any] = {}
    if "metric" in place:
        found["metric"] = _of_test(place["metric"], task)
    if isinstance(columns := place.get("columns"), dict):
        found["columns"] = {
            name: {**column, "metric": _of_test(column["metric"], task)}
            if isinstance(column, dict) and "metric" in column
            else column
            for name, column in columns.items()
        }
    return found


def _of_test(metric: Any, task: TaskOptions) -> Any:
    tested = f"test_{metric}"
    return tested if tested in task.metrics and not str(metric).startswith(OF_TEST) else metric
