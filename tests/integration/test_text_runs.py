"""Runs of fine-tuning and of masked language models: what they start from, divided, measured, and refused. How they
resume is as of other tasks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_runs import dataset_of, glue_spec, masked_spec, train, training
from worlds import run_together, train_together

from comt_cli.data.glue.dataset import GlueBatch
from comt_cli.exchange.checkpoint import read_state
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedClassifier, LoadedMaskedModel
from comt_cli.models.build import materialise, model_of
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.scoring.classification import classification_scores
from comt_cli.training.update import optimizer_of


@pytest.fixture
def source(tiny_corpus: str) -> RunSpec:
    return masked_spec(tiny_corpus, steps=3, evaluate_every=None)


def weights(directory: RunDirectory) -> dict[str, torch.Tensor]:
    return read_state(directory.checkpoint_file)["model"]


# ---- where it starts


def test_it_starts_from_the_sources_body(source, tiny_corpus, tmp_path):
    """Every tensor but the pooler's and the classifier's, which have their own initial values."""
    train(source, tmp_path)
    spec = glue_spec(tiny_corpus, start=source, steps=1, learning_rate=1e-30, evaluate_every=None, warmup_steps=0)
    ours, theirs = weights(train(spec, tmp_path)), weights(RunDirectory.of(tmp_path, source))
    fresh = model_of(spec)
    materialise(fresh, torch.device("cpu"), spec.seed)
    assert {name.partition(".")[0] for name in ours.keys() - theirs.keys()} == {"pooler", "classifier"}
    assert {name.partition(".")[0] for name in theirs.keys() - ours.keys()} == {"head"}
    for name, initial in fresh.state_dict().items():
        torch.testing.assert_close(ours[name], theirs.get(name, initial), rtol=0, atol=1e-25)


# ---- how it trains


@pytest.mark.parametrize("spec_of", [masked_spec, glue_spec])
def test_micro_batches_change_rounding_alone(spec_of, tiny_corpus, tmp_path):
    """Masks and dropout follow the samples, and the parts of a batch are padded by themselves."""
    losses = [
        [line["loss"] for line in train(spec_of(tiny_corpus, **sizes), tmp_path).metrics() if "loss" in line]
        for sizes in ({}, {"micro_batch_size": 2})
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] != losses[1]  # they are two runs


@pytest.mark.slow
@pytest.mark.parametrize("spec_of", [masked_spec, glue_spec])
def test_two_processes_are_as_one(spec_of, nursery, tiny_corpus, tmp_path):
    more = {"task": "scene-similarity", "evaluation_batch_size": 301}  # the last batch is one's alone
    spec = spec_of(tiny_corpus, **(more if spec_of is glue_spec else {}))
    alone, together = train(spec, tmp_path / "alone"), RunDirectory.of(tmp_path / "two", spec)
    run_together(nursery, 2, train_together, spec.model_dump_json(), str(tmp_path / "two"))
    for first, second in zip(alone.metrics(), together.metrics(), strict=True):
        for key in first:  # of other sums; a correlation is of numbers that hardly differ yet
            is_score = key.endswith(("score", "pearson", "spearman"))
            assert second[key] == pytest.approx(first[key], rel=1e-3, abs=0.2 if is_score else None), key


@pytest.mark.parametrize("task", ["scene-nli", "scene-similarity"])
def test_padding_changes_nothing(task, tiny_corpus, tmp_path):
    run = training(glue_spec(tiny_corpus, task=task, data={"sequence_length": 40}), tmp_path)
    run.task.build()
    run.task.place()
    run.task.model.eval()
    batch = run.task.train.batch(np.arange(5))
    wider = ((0, 0), (0, 3))
    padded = GlueBatch(np.pad(batch.tokens, wider), np.pad(batch.segments, wider), batch.targets, batch.positions)
    losses = [float(run.task.objective(*run.task.inputs(each)).detach()) for each in (batch, padded)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert float(run.task.objective(*run.task.inputs(batch.uncounted())).detach()) == 0


# ---- what it comes to


@pytest.mark.parametrize(("task", "classes"), [("scene-nli", 3), ("scene-similarity", 1)])
def test_what_an_evaluation_counts(task, classes, source, tiny_corpus, tmp_path):
    train(source, tmp_path)
    spec = glue_spec(tiny_corpus, task=task, start=source)
    directory = train(spec, tmp_path)
    model, result, dataset = load(directory.path, LoadedClassifier).model.eval(), directory.result(), dataset_of(spec)
    for split, prefix in ((dataset.validation, ""), (dataset.test, "test_")):
        batch = split.batch(np.arange(len(split)))
        with torch.no_grad():
            logits = model(torch.from_numpy(batch.tokens), torch.from_numpy(batch.segments))
        right = torch.from_numpy(batch.targets)
        loss = F.mse_loss(logits[:, 0], right) if classes == 1 else F.cross_entropy(logits, right)
        assert result[f"{prefix}loss"] == pytest.approx(float(loss), rel=1e-4)
        predicted = logits[:, 0] if classes == 1 else logits.argmax(-1)
        scores = classification_scores(predicted.numpy(), batch.targets, spec.settings.data.measures)
        wanted = {f"test_{key}": value for key, value in scores.items()}
        if not prefix:
            wanted = {"score": next(iter(scores.values()))}
        for key, value in wanted.items():
            assert result[key] == pytest.approx(value, abs=0.2), key  # an example may fall on the other side
    assert result["examples"] == 12 * 8
    assert "test_mcc" not in result


@pytest.mark.parametrize("task", ["scene-nli", "scene-similarity"])
def test_a_network_that_always_says_the_same_is_told(task, tiny_corpus, tmp_path):
    """Numbers that are all the same have no correlation."""
    run = training(glue_spec(tiny_corpus, task=task), tmp_path).task
    run.build()
    run.place()
    for parameter in run.model.classifier.parameters():
        torch.nn.init.zeros_(parameter)
    found = run.evaluate(run.evaluation_batches(400, run.validation), run.validation)
    if task == "scene-nli":
        assert found.signed == {"remark": "predicts one class"}
    else:
        assert found.metrics == {"score": None}
        assert "undefined" in found.signed["missing"]["score"]


def test_what_an_evaluation_of_hidden_tokens_counts(tiny_corpus, tmp_path):
    spec = masked_spec(tiny_corpus, method={"name": "comt", "residual": "post-norm"}, steps=30, learning_rate=2e-2)
    directory = train(spec, tmp_path)
    result, loaded = directory.result(), load(directory.path, LoadedMaskedModel)
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
    assert right > 0.05


def test_biases_norms_and_numbers_have_no_weight_decay(tiny_corpus):
    spec = masked_spec(tiny_corpus, method="rezero")
    model = model_of(spec)
    decayed, others = optimizer_of(model, spec.settings.train).param_groups
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    assert {names[parameter].rpartition(".")[2] for parameter in decayed["params"]} == {"weight"}
    assert all(parameter.ndim == 2 for parameter in decayed["params"])
    assert len(decayed["params"]) + len(others["params"]) == len(names)
