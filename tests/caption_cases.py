"""Runs of small captioners on sixty scenes."""

from __future__ import annotations

import functools
from typing import Any

from tiny_runs import EVERY, Options, run_of

from comt_cli.runs.plan import RunSpec, RunStart
from comt_cli.tasks import task_of

SHAPE = {"size": "nano", "width": 24, "ffn_width": 40, "encoder_layers": 2, "decoder_layers": 2, "heads": 4}
MODEL = {**SHAPE, "region_positions": "learned", "region_dropout": 0.1}
DATA = {"corpus": "scenes", "images": 60, "validation_images": 10, "test_images": 12, "max_length": 12}
TRAIN = {**EVERY, "steps": 12, "batch_size": 8, "learning_rate": 5e-3, "warmup_steps": 4}
CIDER = {"objective": "cider", "schedule": "constant", "warmup_steps": 0, "samples": 3}


def caption_spec(
    *, start: RunSpec | None = None, row: str = "a-row", method: Options | str = "post-ln", **train: Any
) -> RunSpec:
    """A run on sixty scenes, of dropout and words drawn from 81."""
    settings = {"model": MODEL, "data": DATA, "train": TRAIN | train, "decode": {"beam": 2}}
    begins = None if start is None else RunStart(run=start)
    return run_of("train-caption", settings, method, known=_known(), start=begins, row=row)


@functools.cache
def _known() -> tuple[str, str]:
    task = task_of("train-caption")
    settings = task.settings.model_validate({"model": MODEL, "data": DATA, "train": TRAIN})
    return task.identify(settings)[0], task.prepare(settings).content_hash
