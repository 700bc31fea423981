"""Runs of small classifiers of texts on short scenes as bytes."""

from __future__ import annotations

from typing import Any

from tiny_runs import BERT, TRAIN_MASKED

from comt_cli.runs.plan import RunSpec, RunStart
from comt_cli.tasks import tasks
from comt_cli.tasks.settings.glue import GlueSettings

TRAIN_GLUE = {**TRAIN_MASKED, "batch_size": 8, "evaluation_batch_size": 400}
NEW = {"new": ("pooler", "classifier"), "drop": ("head",)}


def glue_spec(
    corpus: str,
    *,
    task: str = "scene-nli",
    start: RunSpec | None = None,
    parts: dict[str, tuple[str, ...]] = NEW,
    method: str = "post-ln",
    seed: int = 1,
    data: dict[str, Any] | None = None,
    **train: Any,
) -> RunSpec:
    """A run on the beginnings of 60 examples; dropout is on."""
    rows = {"corpus": corpus, "tokenizer": "bytes", "sequence_length": 48, "validation_fraction": 0.2}
    settings = GlueSettings.model_validate(
        {
            "model": BERT,
            "data": {**rows, "task": task, "held_out": 0.02, "train_examples": 60} | (data or {}),
            "train": TRAIN_GLUE | train,
        }
    )
    glue = tasks()["finetune"]
    return RunSpec(
        paper="comt",
        table="tiny-glue",
        command="finetune",
        scale="smoke",
        row="a-row",
        column="tiny",
        seed=seed,
        method={"name": method},
        settings=settings,
        data_fingerprint=glue.fingerprint(settings),
        data_content=glue.prepare(settings).content_hash,
        start=None if start is None else RunStart(run=start, **parts),
    )
