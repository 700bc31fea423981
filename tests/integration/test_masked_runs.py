"""Runs of masked language models: stopped and resumed, in micro-batches, evaluated, and read by other verbs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_runs import StopAt, Stopped, assert_same_run, dataset_of, masked_spec, train
from worlds import run_together

from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedMaskedModel
from comt_cli.models.build import model_of
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.masked_lm import MaskedSettings
from comt_cli.training.events import ignore
from comt_cli.training.loop import Training
from comt_cli.training.parallel import join_world
from comt_cli.training.processes import StopSignal
from comt_cli.training.tasks.masked_lm import MaskedRun


def test_stopped_at_any_event_it_ends_the_same(tiny_corpus, tmp_path):
    spec = masked_spec(tiny_corpus)
    expected = train(spec, tmp_path / "undisturbed")
    for events in range(1, 30, 3):
        try:
            train(spec, tmp_path / "runs", listener=StopAt(events))
        except Stopped:
            continue
        break
    assert 4 < events < 28
    assert_same_run(RunDirectory.of(tmp_path / "runs", spec), expected)


def test_micro_batches_change_rounding_alone(tiny_corpus, tmp_path):
    """Masks and dropout follow the samples."""
    losses = [
        [line["loss"] for line in train(masked_spec(tiny_corpus, **sizes), tmp_path).metrics() if "loss" in line]
        for sizes in ({}, {"micro_batch_size": 2})
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] != losses[1]  # they are two runs


def share(rank: int, spec_json: str, runs: str) -> None:
    """Train with the other process."""
    del rank
    spec = RunSpec.model_validate_json(spec_json)
    with join_world("cpu") as world:
        Training(spec, RunDirectory.of(Path(runs), spec), dataset_of(spec), world, ignore, StopSignal()).run()


@pytest.mark.slow
def test_two_processes_are_as_one(nursery, tiny_corpus, tmp_path):
    spec = masked_spec(tiny_corpus)
    alone, together = train(spec, tmp_path / "alone"), RunDirectory.of(tmp_path / "two", spec)
    run_together(nursery, 2, share, spec.model_dump_json(), str(tmp_path / "two"))
    for first, second in zip(alone.metrics(), together.metrics(), strict=True):
        assert second == pytest.approx(first, rel=1e-4)  # of other sums
    assert together.result()["masked_accuracy"] == pytest.approx(alone.result()["masked_accuracy"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_corpus: str) -> RunDirectory:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        import isolation

        patch.setenv("COMT_CACHE", str(isolation.cache_folder()))
        spec = masked_spec(tiny_corpus, method={"name": "comt", "residual": "post-norm"}, steps=60, learning_rate=2e-2)
        return train(spec, tmp_path_factory.mktemp("trained"))


def test_what_an_evaluation_counts(trained):
    spec, result = trained.spec(), trained.result()
    loaded = load(trained.path, LoadedMaskedModel)
    split = dataset_of(spec).validation
    batch = split.batch(np.arange(len(split)))
    tokens, places, targets = (torch.from_numpy(each) for each in (batch.tokens, batch.places, batch.targets))
    with torch.no_grad():
        logits = loaded.model.eval()(tokens, places)
    counted = targets >= 0
    loss = F.cross_entropy(logits[counted], targets[counted]).item()
    assert result["masked_loss"] == pytest.approx(loss, rel=1e-5)
    assert result["masked_perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    right = (logits.argmax(-1) == targets)[counted].float().mean().item()
    assert result["masked_accuracy"] == pytest.approx(100 * right, rel=1e-5)
    assert 2.3 < loss < 5  # from ln 261 = 5.6
    assert right > 0.08


def test_biases_norms_and_numbers_have_no_weight_decay(tiny_corpus):
    spec = masked_spec(tiny_corpus, method="rezero")
    model = model_of(spec)
    decayed, others = MaskedRun.optimizer(model, spec.settings_as(MaskedSettings)).param_groups
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    assert {names[parameter].rpartition(".")[2] for parameter in decayed["params"]} == {"weight"}
    assert all(parameter.ndim == 2 for parameter in decayed["params"])
    assert len(decayed["params"]) + len(others["params"]) == len(names)
