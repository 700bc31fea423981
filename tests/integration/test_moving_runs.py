"""A run that moves to other machines while it is trained: what arrives resumes to the same bits."""

from __future__ import annotations

import pytest
from tiny_runs import Stopped, assert_same_run, tiny_spec, train
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.exchange.checkpoint import read_state
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.training.events import Event, StepReport


def comt(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_moves_to_other_machines(tiny_corpus, tmp_path):
    """Pushed during training, after its death, and when it is done; resumed elsewhere from each, and pulled back."""
    spec = tiny_spec(tiny_corpus, steps=14, save_every=4, log_every=1, evaluate_every=3, select="best")
    expected = train(spec, tmp_path / "undisturbed")
    here, early, late, store = (tmp_path / name for name in ("here", "early", "late", "store"))
    directory = RunDirectory.of(here, spec)

    def listener(event: Event) -> None:
        if isinstance(event, StepReport) and event.step == 7:
            assert directory.state() is RunState.running
            assert "1 sent" in comt("push", store, "--runs", here)
            assert "1 received" in comt("pull", store, "--runs", early)
        if isinstance(event, StepReport) and event.step == 11:
            raise Stopped

    with pytest.raises(Stopped):
        train(spec, here, listener=listener)
    for runs, step in ((early, 4), (late, 8)):
        assert comt("push", store, "--runs", here)
        comt("pull", store, "--runs", late)
        copy = RunDirectory.of(runs, spec)
        progress = read_state(copy.checkpoint_file)["progress"]
        assert (progress["step"], progress["metrics_bytes"]) == (step, copy.metrics_file.stat().st_size)
        assert max(line["step"] for line in copy.metrics()) == step
        assert_same_run(train(spec, runs), expected)
    assert "1 sent" in comt("push", store, "--runs", late)
    assert directory.state() is RunState.unfinished
    assert "1 received" in comt("pull", store, "--runs", here)  # though it had lines after its last checkpoint
    assert_same_run(directory, expected)
    assert directory.state() is RunState.done
    assert sorted(path.name for path in directory.path.glob("*.pt")) == ["checkpoint.pt"]
