"""Runs as training leaves them, for tests that copy them: with checkpoints that state the lengths of logs."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
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


def save(directory: RunDirectory, lengths: dict[str, int], weights: bytes = b"weights") -> None:
    """A checkpoint as torch writes it, with these lengths of the logs."""
    counters = {"step": 3, "seconds": 1.5, **{f"{name}_bytes": length for name, length in lengths.items()}}
    with zipfile.ZipFile(directory.checkpoint_file, "w") as archive:
        many = {f"weight {number}": f"storage {number}" for number in range(300)}  # as many as a model's
        state = {"id": "x", "model": many, "progress": counters, "n": 7}
        archive.writestr("archive/data.pkl", pickle.dumps(state, protocol=2))
        archive.writestr("archive/data/0", weights)


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
    save(directory, lengths, b"weights after %d" % saved * 40)
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
