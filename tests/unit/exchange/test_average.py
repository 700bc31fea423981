"""The mean of a run's last weights: NumPy's, by step, and a checkpoint like any other."""

from __future__ import annotations

import pytest
import torch
from toy_translation import toy_model, toy_spec, write_run
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import average, kept_weights, read_state, write_state
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedTranslator

STEPS = [900, 1000, 1100, 20, 300, 400, 500, 600, 700, 800, 10, 1200]


@pytest.fixture(scope="module")
def models():
    spec = toy_spec()
    return {step: toy_model(spec, seed) for seed, step in enumerate(STEPS)}


@pytest.fixture
def run(tmp_path, models):
    weights = {f"step{step}": model.state_dict() for step, model in models.items()}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights-x.pt").touch()  # no file of ours
    return write_run(tmp_path / "run", toy_spec(), models[10], **weights)


def test_the_last_by_step_are_averaged(run, models):
    assert list(kept_weights(run)) == sorted(STEPS)
    _, chosen = average(run, 10, run / "mean.pt")
    assert chosen == sorted(STEPS)[-10:]
    found = read_state(run / "mean.pt")["model"]
    for name, tensor in models[10].state_dict().items():
        stack = torch.stack([models[step].state_dict()[name] for step in chosen])
        assert found[name].dtype == tensor.dtype
        torch.testing.assert_close(found[name], stack.double().mean(0).to(tensor.dtype), rtol=2e-7, atol=1e-12)


def test_the_verb_writes_a_checkpoint_that_others_read(run):
    result = CliRunner().invoke(app, ["average", str(run), "--last", "3"])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{run}/average-1000-1200.pt  the mean of 3 steps: 1,000, 1,100, 1,200\n"
    load(run / "average-1000-1200.pt", LoadedTranslator)
    assert read_state(run / "average-1000-1200.pt")["averaged_steps"] == [1000, 1100, 1200]
    checkpoint = (run / "checkpoint.pt").read_bytes()
    (run / "link.pt").symlink_to("weights-20.pt")
    for name in ("checkpoint.pt", "weights-1200.pt", "link.pt"):
        refused = CliRunner().invoke(app, ["average", str(run), "--last", "3", "-o", str(run / name)])
        assert "would overwrite the input" in refused.exception.message
    assert (run / "checkpoint.pt").read_bytes() == checkpoint


def test_other_runs_and_other_architectures_are_refused(run):
    spec = toy_spec()
    about = {"spec": spec.model_dump(mode="json"), "id": spec.id}
    wider = toy_model(toy_spec(ffn_width=300)).state_dict()
    write_state(run / "weights-1300.pt", {**about, "model": wider})
    with pytest.raises(UserError, match=r"weights-1300.pt has other parameters .*\[300\], not \[256\]"):
        average(run, 2, run / "mean.pt")
    write_state(run / "weights-1300.pt", {**about, "id": "0" * 12, "model": toy_model(spec).state_dict()})
    with pytest.raises(UserError, match="belongs to run 000000000000"):
        average(run, 2, run / "mean.pt")
