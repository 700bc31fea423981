"""A folder of recipes and runs as they come to lie about: of several tables, scales and settings, in every state."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tiny_recipe import recipe
from typer.testing import CliRunner, Result

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.files import write_json
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task
from comt_cli.verbs.plan import plan_recipe

ROWS = {"pre-ln": "pre-ln", "pre-ln+comt": "comt", "a/b": "mix-ln"}
OTHER = {"pre-ln": "pre-ln", "with-gates": "comt", "a/b": "mix-ln"}
"""The same trainings under another name."""
DATA = ("asked-feed", "c0ffee0123456789")
"""What the data of every recipe is called: what was asked for, and its content."""


def gates(table: str, rows: dict[str, str], **more: Any) -> str:
    """A recipe of two scales: smoke, of two columns, and small."""
    settings = {
        "model": {"size": "tiny"},
        "data": {"vocabulary": 512, "sequence_length": 64},
        "train": {"steps": 200, "warmup_steps": 0.1, "batch_size": 8},
    }
    docs, wide = {"docs/tiny": {}}, {"docs/wide": {"settings": {"model": {"width": 256}}}}
    small = {"description": "larger", "settings": {"train": {"batch_size": 16}}, "columns": docs}
    scales = {"smoke": {"description": "quick", "columns": docs | wide}, "small": small}
    columns = {"c4/130m": {"settings": {"model": {"size": "130m"}}}}
    about = {"title": "Gates of our own", "seeds": [1, 2]}
    return recipe(table, rows, settings=settings, columns=columns, scales=scales, **about, **more)


def comt(*arguments: str, answer: str | None = None) -> Result:
    """What comes of a command line, in this process."""
    result = CliRunner().invoke(app, arguments, input=answer)
    if not isinstance(result.exception, UserError | SystemExit | None):
        raise result.exception
    return result


class Shelf:
    """The current folder: `recipes/mine/gates.yaml`, `recipes/mine/twin.yaml`, and `runs`."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = Path("runs")
        monkeypatch.chdir(folder)
        monkeypatch.setattr(Task, "identify", lambda self, settings: DATA)
        for name, rows in (("gates", ROWS), ("twin", OTHER)):
            path = folder / f"recipes/mine/{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(gates(name, rows), encoding="utf-8")

    def specs(self, recipe: str = "mine/gates", scale: str = "smoke", **selection: Any) -> list[RunSpec]:
        overrides = selection.pop("overrides", None)
        return plan_recipe(recipe, scale, overrides, **selection).specs

    def spec(self, row: str, seed: int = 1, column: str | None = "docs/tiny", **selection: Any) -> RunSpec:
        (spec,) = self.specs(rows=row, seeds=str(seed), columns=column, **selection)
        return spec

    def begun(self, spec: RunSpec, steps: int = 50) -> RunDirectory:
        """A run that stopped after some steps."""
        directory = RunDirectory.of(self.runs, spec)
        directory.create(spec)
        lines = [{"step": step, "loss": 5.0} for step in range(10, steps + 1, 10)]
        directory.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        directory.checkpoint_file.write_bytes(b"weights of " + spec.id.encode())
        return directory

    def done(self, spec: RunSpec, value: float = 100.0, **result: Any) -> RunDirectory:
        directory = self.begun(spec)
        said = {"state": "done", "step": 200, "perplexity": value, "train_seconds": 60.0}
        write_json(directory.result_file, said | result)
        return directory

    def diverged(self, spec: RunSpec) -> RunDirectory:
        return self.done(spec, state="diverged", perplexity=None, step=120, diverged_at=120)

    def failed(self, spec: RunSpec) -> RunDirectory:
        directory = self.begun(spec)
        directory.note_error("RuntimeError: a defect")
        return directory


def tree(folder: Path) -> dict[str, str]:
    """Everything below a folder by its path: a file's content, where a link leads, and `/` for folders."""
    found = {}
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(base, name)
            key = path.relative_to(folder).as_posix()
            if path.is_symlink():
                found[key] = f"-> {path.readlink()}"
            else:
                found[key] = "/" if path.is_dir() else path.read_bytes().decode("latin-1")
    return found


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    return Shelf(tmp_path, monkeypatch)
