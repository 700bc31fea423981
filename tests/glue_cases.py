"""Runs of small classifiers of texts on short scenes as bytes."""

from __future__ import annotations

from typing import Any

from tiny_runs import BERT, TEXT, TRAIN_MASKED, Options, run_of

from comt_cli.runs.plan import RunSpec, RunStart

NEW = {"new": ("pooler", "classifier"), "drop": ("head",)}


def glue_spec(
    corpus: str,
    *,
    task: str = "scene-nli",
    start: RunSpec | None = None,
    parts: dict[str, tuple[str, ...]] = NEW,
    method: str = "post-ln",
    seed: int = 1,
    data: Options | None = None,
    **train: Any,
) -> RunSpec:
    """A run on the beginnings of 60 examples; dropout is on."""
    rows = {**TEXT, "corpus": corpus, "task": task, "held_out": 0.02, "train_examples": 60} | (data or {})
    sizes = {**TRAIN_MASKED, "batch_size": 8, "evaluation_batch_size": 400}
    begins = None if start is None else RunStart(run=start, **parts)
    return run_of("finetune", {"model": BERT, "data": rows, "train": sizes | train}, method, start=begins, seed=seed)
