"""Which task a run is."""

from __future__ import annotations

from typing import Any

from comt_cli.data.dataset import Dataset
from comt_cli.data.images.dataset import ImageDataset
from comt_cli.recipe.image_settings import ImageSettings
from comt_cli.runs.plan import RunSpec
from comt_cli.training.language_task import LanguageTask
from comt_cli.training.task import Task
from comt_cli.training.world import World


def task_of(spec: RunSpec, dataset: Dataset | ImageDataset, world: World) -> Task[Any]:
    """The task of a run, with its data set, in one process of a world."""
    if isinstance(spec.settings, ImageSettings):
        from comt_cli.training.image_task import ImageTask

        assert isinstance(dataset, ImageDataset)
        return ImageTask(spec, dataset, world)
    assert isinstance(dataset, Dataset)
    return LanguageTask(spec, dataset, world)
