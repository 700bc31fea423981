"""Runs as training leaves them, for tests that copy them: with checkpoints that state the lengths of logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from comt_cli.files import write_json
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from tests.shelf import tree


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache for each test, and an empty `memory://`."""
    monkeypatch.setenv("COMT_CACHE", str(tmp_path_factory.mktemp("cache")))
    MemoryFileSystem.store.clear()


def save(directory: RunDirectory, lengths: dict[str, int], weights: bytes = b"weights", step: int = 3) -> None:
    """A checkpoint of this step that states these lengths of the logs."""
    counters = {"step": step, "seconds": 1.5, **{f"{name}_bytes": length for name, length in lengths.items()}}
    model = {"weight": torch.tensor([*weights], dtype=torch.float32)}
    state = {"format": 1, "spec": {}, "id": directory.path.name, "model": model, "progress": counters}
    torch.save(state, directory.path / "new")
    (directory.path / "new").replace(directory.checkpoint_file)


def trained(spec: RunSpec, saved: int, after: int = 0, *, loss: float = 5.0, runs: str = "runs") -> RunDirectory:
    """A run stopped some steps after its checkpoint."""
    directory = RunDirectory.of(Path(runs), spec)
    directory.create(spec)
    write_json(directory.environment_file, [{"step": 0}])
    lengths = {"gradients": 0}
    for name, file in (("metrics", directory.metrics_file), ("timings", directory.timings_file)):
        lines = [json.dumps({"step": step, name: loss}) + "\n" for step in range(saved + after)]
        file.write_text("".join(lines))
        lengths[name] = len("".join(lines[:saved]))
    save(directory, lengths, b"weights after %d" % saved * 40, saved)
    return directory


def finished(spec: RunSpec, **options: Any) -> RunDirectory:
    """A run that is done, with every kind of file that is copied."""
    directory = trained(spec, 20, **options)
    directory.metrics_table.write_text("step,loss\n")
    for name in ("outputs/final/test.txt", "evaluations/arc_easy-0.json", "weights-10.pt"):
        (directory.path / name).parent.mkdir(parents=True, exist_ok=True)
        (directory.path / name).write_text(name)
    write_json(directory.result_file, {"state": "done", "step": 20, "perplexity": 9.0})
    return directory


def files(directory: Path) -> dict[str, str]:
    """The contents of all files but locks."""
    return {name: text for name, text in tree(directory).items() if text != "/" and not name.endswith(".lock")}
