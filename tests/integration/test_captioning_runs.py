"""Runs of captioners: trained by cross-entropy and then self-critically, stopped and resumed, divided, and what is
minimised."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from same_bits import same_integers
from tiny_runs import CIDER, assert_same_run, caption_spec, dataset_of, stopped_at, train, training

from comt_cli.data.split import IGNORE
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.scoring.captions import Cider, caption_scores
from comt_cli.scoring.scenes import scene_f1
from comt_cli.training.tasks.captioning import CaptioningRun


def critical(**options) -> RunSpec:
    return caption_spec(start=caption_spec(), row="critical", **{**CIDER, "save_every": 2, "steps": 6, **options})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by cross-entropy, and a self-critical one that starts from it; neither was stopped."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("undisturbed")
    train(caption_spec(), folder)
    train(critical(), folder)
    return folder


def test_scores_are_those_of_the_captions_that_are_written(runs):
    for spec in (caption_spec(), critical()):
        directory, dataset = RunDirectory.of(runs, spec), dataset_of(spec)
        result = directory.result()
        lines = (directory.path / "outputs/final/test.txt").read_text().split("\n")[:-1]
        assert len(lines) == len(dataset.texts["test"].references) == 12
        for key, value in caption_scores(lines, dataset.texts["test"].references).items():
            assert result[f"test_{key}"] == pytest.approx(value), key
        assert result["test_scene_f1"] == scene_f1(lines, dataset.scenes["test"])
        assert result["test_evaluation"]["images"] == 12
        for key in ("meteor", "spice"):
            assert (result[f"test_{key}"] is None) == (key in result["test_evaluation"].get("missing", {}))
        assert result["target_perplexity"] > 1
    assert critical().start.run.id == result["start"]


def test_stopped_anywhere_it_ends_with_the_same_bits(runs, tmp_path):
    """Draws follow from seed, step and sample: nothing else is needed to draw it again."""
    shutil.copytree(runs / "by-id" / caption_spec().id, tmp_path / "by-id" / caption_spec().id)
    stopped_at((2, 4, 3), critical(), tmp_path)
    assert_same_run(train(critical(), tmp_path), RunDirectory.of(runs, critical()))


def task_of(spec: RunSpec, runs: Path) -> CaptioningRun:
    run = training(spec, runs)
    run.task.build()
    run.task.place()
    return run.task


@pytest.mark.parametrize("baseline", ["greedy", "others"])
def test_the_gradient_is_that_of_the_expected_reward(runs, baseline):
    """Advantages are rewards minus the greedy caption's, or those of the others, and sum to zero then; the loss is
    minus the mean reward, and its gradient that of - advantage log p, written out in a loop over captions."""
    spec = critical(self_critical_baseline=baseline)
    task = task_of(spec, runs)
    with task.train_batches(8, 0) as batches:
        (batch,) = next(iter(batches))
        total = batches.targets(0)
    regions, mask, read, rewards, advantages, said = task.inputs(batch)
    again = task.inputs(batch)[5]
    assert same_integers(said, again)
    cider = Cider(task.dataset.texts["train"].references)
    texts = [task.dataset.tokenizer.decode([i for i in row if i not in (IGNORE, 1)]) for row in said.tolist()]
    expected = [cider.score(text, int(batch.images[place // 3])) / 100 for place, text in enumerate(texts)]
    assert rewards.tolist() == pytest.approx(expected, rel=1e-6)
    assert len(set(texts)) > 10
    each = (rewards - advantages).view(8, 3)
    if baseline == "others":
        sums = rewards.view(8, 3).sum(1, keepdim=True)
        torch.testing.assert_close(each, (sums - rewards.view(8, 3)) / 2)
        torch.testing.assert_close(advantages.view(8, 3).sum(1), torch.zeros(8), atol=1e-5, rtol=0)
    else:
        torch.testing.assert_close(each, each[:, :1].expand_as(each), atol=1e-6, rtol=1e-5)
    loss = task.objective(regions, mask, read, rewards, advantages, said)
    assert float(loss.detach()) / total == pytest.approx(-float(rewards.mean()), rel=1e-5)
    (gradient,) = torch.autograd.grad(loss / total, [task.model.embedding.weight])
    assert spec.settings.model.region_dropout > 0
    logits = task.model.eval()(regions, mask, read)  # what captions are drawn from: without dropout
    logits[..., [0, 2, 3]] = -torch.inf
    logits[:, 0, 1] = -torch.inf
    logs = logits.log_softmax(-1)
    sum_of = [
        advantages[row] * sum(logs[row, t, word] for t, word in enumerate(said[row].tolist()) if word != IGNORE)
        for row in range(24)
    ]
    (wanted,) = torch.autograd.grad(-sum(sum_of) / 24, [task.model.embedding.weight])
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-7)


def test_micro_batches_draw_the_same(runs, tmp_path):
    shutil.copytree(runs / "by-id" / caption_spec().id, tmp_path / "by-id" / caption_spec().id)
    spec = critical(micro_batch_size=4)
    stopped_at([4], spec, tmp_path)  # after the start and two steps
    lines = [RunDirectory.of(*each).metrics()[:2] for each in ((runs, critical()), (tmp_path, spec))]
    first, second = ([line["loss"] for line in each] for each in lines)
    np.testing.assert_allclose(first, second, rtol=1e-5)
