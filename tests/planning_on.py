"""Plans of recipes whose data need not be here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import comt_cli.runs.plan
from comt_cli.recipe.load import LoadedRecipe
from comt_cli.runs.plan import RunSpec, plan
from comt_cli.tasks import Task


def plan_on(loaded: LoadedRecipe, scale: str, identify: Callable[[Any], Any], **selection: Any) -> list[RunSpec]:
    """`runs.plan.plan`, with `identify` of the settings for the fingerprint and the content of the data; the content of
    published weights is their name, whether they are here or not."""
    weights = mock.patch.object(comt_cli.runs.plan, "content_hash", lambda asked: asked)
    with weights, mock.patch.object(Task, "identify", lambda _, settings: identify(settings)):
        return plan(loaded, scale, **selection)
