"""`comt bench gpu`: parts in processes of their own, within a time, going on where the last call stopped."""

from __future__ import annotations

import json
import signal
import tarfile
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from comt_cli.app import app
from comt_cli.commit import git_commit
from comt_cli.errors import RunInterrupted
from comt_cli.lab import gpu
from comt_cli.lab.gpu import Part, parts_for
from comt_cli.lab.runner import NotMeasured
from comt_cli.training import hardware

WELL = ("platform",)
WRONG = ("calendar", "--nonsense")
WAITS = ("timeit", "-n", "1", "-r", "1", "import time; time.sleep(60)")


@pytest.fixture
def call(tmp_path, monkeypatch):
    """The verb with these parts instead of its own."""
    monkeypatch.setattr(gpu, "_GRACE", 1.0)
    monkeypatch.setattr(gpu, "_ENDING", 0.0)
    monkeypatch.setattr(hardware, "cuda_names", lambda: ())

    def run(*parts: Part, seconds: float = 60) -> Result:
        monkeypatch.setattr(gpu, "parts_for", lambda folder, on_cuda: list(parts))
        return CliRunner().invoke(app, ["bench", "gpu", "--minutes", str(seconds / 60), "--folder", str(tmp_path)])

    return run


def states(folder: Path) -> dict[str, str]:
    return json.loads((folder / "state.json").read_text())["parts"]


def test_a_part_that_fails_is_told_and_the_next_call_goes_on(call, tmp_path):
    for name in ("runs/by-id/a/result.json", "runs/by-id/a/weights.safetensors"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    parts = [Part("a", 20, WELL), Part("b", 20, WRONG)]
    result = call(*parts)
    assert isinstance(result.exception, NotMeasured)
    assert "unrecognized arguments: --nonsense" in result.output, "the end of its log"
    assert states(tmp_path) == {"a": "done", "b": "failed"}
    with tarfile.open(tmp_path / "gpu.tar.gz") as tar:
        files = {"state.json", "logs/a.log", "logs/b.log", "runs/by-id/a/result.json"}
        assert {*tar.getnames()} == files
    again = call(*parts[:1], Part("b", 20, WELL))
    assert again.exit_code == 0, again.output
    assert "a (at most" not in again.output
    of = json.loads((tmp_path / "state.json").read_text())
    assert gpu.State(tmp_path, commit=of["commit"], device=None).parts == {"a": "done", "b": "done"}
    assert gpu.State(tmp_path, commit=of["commit"], device="another").parts == {}


def test_a_signal_ends_the_part_and_what_there_is_is_written(call, tmp_path, monkeypatch):
    run = gpu._run

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGTERM)
        return run(*arguments)

    monkeypatch.setattr(gpu, "_run", interrupted)
    earlier = Part("earlier", 20, WELL)
    gpu.State(tmp_path, commit=git_commit(), device=None).put(earlier, "done")
    result = call(earlier, Part("waits", 60, WAITS))
    assert isinstance(result.exception, RunInterrupted)
    assert result.exception.exit_status == 128 + signal.SIGTERM
    assert states(tmp_path) == {"earlier": "done", "waits": "cut short"}
    assert (tmp_path / "gpu.tar.gz").exists()


@pytest.mark.parametrize("on_cuda", [True, False])
def test_every_part_is_understood(on_cuda):
    parts = parts_for(Path("there"), on_cuda=on_cuda)
    assert len({part.name for part in parts}) == len(parts)
    for part in parts:
        words = [word.format(minutes=9) for word in part.words]
        if words[0] == "pytest":
            continue
        command, names = get_command(app), words[1:]
        while hasattr(command, "commands"):
            _, command, names = command.resolve_command(None, names)
        context = command.make_context(part.name, [], resilient_parsing=True)
        context.resilient_parsing = False
        _, left, _ = command.make_parser(context).parse_args(list(names))
        assert not left
