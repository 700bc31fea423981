"""Runs so small that a test can train them: short documents as bytes, a LLaMA of width 32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from comt_cli.data import Dataset, fingerprint, prepare
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.run_directory import RunDirectory
from comt_cli.recipe.settings import DataSettings, ModelSettings, Settings, TrainSettings
from comt_cli.training.loop import Training
from comt_cli.training.progress import Listener
from comt_cli.training.signals import StopSignal
from comt_cli.training.world import World

PROSE = "the gate reads a token and scales what the projection adds to the residual stream of every layer"
WORDS = PROSE.split()
TIMES = {"train_seconds", "tokens_per_second", "waiting_share", "peak_memory_bytes", "mfu", "git_commit"}
"""Keys of result.json in which two equal runs may differ."""

MODEL = {"size": "tiny", "width": 32, "ffn_width": 48, "layers": 2, "heads": 2}
TRAIN = {
    "kernels": "reference",
    "steps": 30,
    "batch_size": 8,
    "learning_rate": 5e-3,
    "warmup_steps": 4,
    "log_every": 4,
    "save_every": 3,
}


def write_corpus(folder: Path, documents: int = 90) -> str:
    """Files of 5 to 40 words, all different; returns the corpus as a recipe names it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        words = [WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(5 + number * 5 % 36)]
        (folder / f"{number:03}.txt").write_text(f"{number} {' '.join(words)}", encoding="utf-8")
    return f"files:{folder}/*.txt"


def tiny_spec(
    corpus: str,
    *,
    method: dict[str, Any] | str = "comt",
    seed: int = 1,
    model: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    **train: Any,
) -> RunSpec:
    """A run with ragged, padded rows of 48 bytes."""
    rows = DataSettings(
        **{"corpus": corpus, "tokenizer": "bytes", "rows": "pad", "sequence_length": 48, "validation_fraction": 0.2}
        | (data or {})
    )
    return RunSpec(
        paper="comt",
        table="tiny",
        command="train-lm",
        scale="smoke",
        row="a-row",
        column="tiny",
        seed=seed,
        method={"name": method} if isinstance(method, str) else method,
        settings=Settings(
            model=ModelSettings(**MODEL | (model or {})), data=rows, train=TrainSettings(**TRAIN | train)
        ),
        data_fingerprint=fingerprint(rows),
    )


def training(
    spec: RunSpec,
    runs: Path,
    *,
    listener: Listener | None = None,
    stop: StopSignal | None = None,
    dataset: Dataset | None = None,
    device: str = "cpu",
) -> Training:
    """The run of `spec` below `runs`, not started."""
    return Training(
        spec,
        RunDirectory.of(runs, spec),
        dataset or prepare(spec.settings.data),
        World(torch.device(device)),
        listener or Listener(),
        stop or StopSignal(),
    )


def train(spec: RunSpec, runs: Path, **options: Any) -> RunDirectory:
    """Train `spec` to its end."""
    training(spec, runs, **options).run()
    return RunDirectory.of(runs, spec)


def assert_same_run(directory: RunDirectory, other: RunDirectory) -> None:
    """Equal to the bit: the lines of metrics.jsonl, all weights, and all of result.json but the times."""
    assert directory.metrics_file.read_bytes() == other.metrics_file.read_bytes()
    assert directory.metrics_table.read_bytes() == other.metrics_table.read_bytes()
    mine, theirs = (torch.load(each.checkpoint_file, weights_only=True) for each in (directory, other))
    assert mine["model"].keys() == theirs["model"].keys()
    for name, weight in mine["model"].items():
        assert torch.equal(weight, theirs["model"][name]), name
    assert untimed(directory) == untimed(other)


def untimed(directory: RunDirectory) -> dict[str, Any]:
    """result.json without the keys in which equal runs may differ."""
    result = json.loads(directory.result_file.read_text(encoding="utf-8"))
    return {key: value for key, value in result.items() if key not in TIMES}


class Stopped(Exception):
    """Thrown into a run to end it."""


class StopAt(Listener):
    """Raises at the n-th event that the listener hears."""

    def __init__(self, event: int, error: type[Exception] = Stopped) -> None:
        self.left, self.error = event, error

    def _hear(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error("stopped by the test")

    run_started = step_done = evaluating = run_finished = _hear  # type: ignore[assignment]
