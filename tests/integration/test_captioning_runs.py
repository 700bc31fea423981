"""Runs of captioners: trained by cross-entropy and then self-critically, stopped and resumed, divided; what is
minimised; and a table from the command line, one of whose captioners says what an image shows."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from caption_cases import CIDER, DATA, MODEL, TRAIN, caption_spec
from PIL import Image
from same_bits import same_integers
from tiny_runs import StopAt, Stopped, assert_same_run, dataset_of, train, training

from comt_cli import app
from comt_cli.data.split import IGNORE
from comt_cli.generation.caption import ImageCaptioner, Seen
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.scoring.captions import Cider, caption_scores
from comt_cli.scoring.scenes import scene_f1
from comt_cli.tasks.settings.decoding import BeamSettings
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


def lay_the_start(runs: Path, other: Path) -> None:
    """The run that self-critical ones start from, below another folder, too."""
    source = RunDirectory.of(runs, caption_spec()).path
    shutil.copytree(source, other / source.relative_to(runs))


@pytest.mark.parametrize("spec", [caption_spec, critical], ids=["cross-entropy", "cider"])
def test_stopped_anywhere_it_ends_with_the_same_bits(runs, spec, tmp_path):
    """What is drawn follows from seed, step and sample: nothing else is needed to draw it again."""
    if spec is critical:
        lay_the_start(runs, tmp_path)
    events = 0
    for event in (2, 4, 3, 2, 3):
        try:
            train(spec(), tmp_path, listener=StopAt(event))
        except Stopped:
            events += 1
    train(spec(), tmp_path)
    assert events > 2
    assert_same_run(RunDirectory.of(tmp_path, spec()), RunDirectory.of(runs, spec()))


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


def test_a_caption_has_a_word(runs, monkeypatch):
    """Whatever the network prefers: here the end before all, and then the unknown word."""
    task = task_of(critical(), runs)
    with task.train_batches(8, 0) as batches:
        (batch,) = next(iter(batches))
    regions, mask, *_ = task.tensors(batch)
    step = task.model.step
    favour = torch.zeros(task.model.vocabulary)
    favour[1], favour[3] = 90, 60
    monkeypatch.setattr(task.model, "step", lambda *given: step(*given) + favour)
    said, *_ = task._said(batch, regions, mask)
    assert said.shape == (8, 3, 2)
    assert said[..., 0].min() > 3
    assert all(len(text.split()) == 1 and text != "<unk>" for text in task._texts(regions, mask))
    loaded = SimpleNamespace(model=task.model, tokenizer=task.dataset.tokenizer, longest=12)
    seen = Seen(regions[0].numpy(), None)
    for each in ImageCaptioner(loaded, torch.device("cpu")).captions(seen, BeamSettings(beam=5, alpha=0.0), 3):
        assert each.text
        assert "<unk>" not in each.text


@pytest.mark.parametrize("options", [{"micro_batch_size": 4}, {"activation_checkpointing": True}])
def test_micro_batches_and_recomputation_draw_the_same(runs, options, tmp_path):
    lay_the_start(runs, tmp_path)
    whole, other = critical(), critical(**options)
    with pytest.raises(Stopped):
        train(other, tmp_path, listener=StopAt(4))  # after the start and two steps
    losses = [
        [line["loss"] for line in RunDirectory.of(folder, spec).metrics() if "loss" in line]
        for folder, spec in ((runs, whole), (tmp_path, other))
    ]
    assert len(losses[1]) >= 2
    np.testing.assert_allclose(losses[0][:2], losses[1][:2], rtol=1e-5)


# ---- from the command line

ROWS = "rows:\n  post-ln: {method: post-ln}\n"
FIRST = f"""
title: A tiny captioner
command: train-caption
metric: test_cider
baseline: post-ln
seeds: [1]
settings:
  model: {json.dumps(MODEL)}
  data: {json.dumps(DATA)}
  train: {json.dumps(TRAIN | {"steps": 6})}
{ROWS}columns:
  cider: {{}}
  bleu4: {{metric: test_bleu4}}
  meteor: {{metric: test_meteor}}
scales:
  smoke: {{description: A tiny model}}
"""
SECOND = (
    FIRST.replace("tiny captioner", "tiny self-critical captioner")
    .replace("baseline: post-ln\n", "baseline: post-ln\nstart: {recipe: first.yaml, column: cider}\n")
    .replace(json.dumps(TRAIN | {"steps": 6}), json.dumps(TRAIN | CIDER | {"steps": 2}))
)


@pytest.mark.slow
def test_from_training_to_a_caption(tmp_path, monkeypatch, capsys, quick_figures):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")  # there is no Java
    Path("first.yaml").write_text(FIRST)
    Path("second.yaml").write_text(SECOND)

    def comt(*arguments: str, status: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["comt", *arguments])
        try:
            app.main()
            ended = 0
        except SystemExit as exit:
            ended = int(exit.code or 0)
        said = capsys.readouterr()
        assert ended == status, said.err
        return said.out if status == 0 else re.sub(r"[\s│]+", " ", said.out + said.err)

    table = comt("train-caption", "--recipe", "second.yaml", "--device", "cpu", "--jobs", "1")
    assert table.count("needs Java") == 1
    assert len(list((tmp_path / "runs/by-id").glob("*/result.json"))) == 2, "one run fills all columns of a table"
    assert comt("report", "second.yaml") == table

    dataset = dataset_of(caption_spec())
    Image.fromarray(dataset.image("test", 3)).save("scene.png")
    Image.fromarray(dataset.image("test", 3)).resize((100, 70)).convert("L").save("other.jpg")
    run = "own/second:post-ln:cider"
    one, _ = comt("caption", run, "scene.png", "other.jpg", "--device", "cpu").splitlines()
    (folder,) = {path.parent for path in tmp_path.glob("runs/own/second/*/*/*/result.json") if "cider" in str(path)}
    # As the run captioned it; of two captions that are equally probable to rounding, either.
    rows = comt("caption", run, "scene.png", "--n-best", "2", "--scores", "--device", "cpu")
    likely = {row[3]: float(row[1]) for row in (line.split("\t") for line in rows.splitlines())}
    for caption in (one, (folder / "outputs/final/test.txt").read_text().split("\n")[3]):
        assert likely[caption] == pytest.approx(max(likely.values()), abs=1e-5)
    rows = comt("caption", run, "scene.png", "--beam", "3", "--n-best", "2", "--scores", "--device", "cpu")
    columns = [line.split("\t") for line in rows.splitlines()]
    assert [row[0] for row in columns] == ["scene.png"] * 2
    assert float(columns[0][1]) >= float(columns[1][1])
    comt("caption", run, "scene.png", "--attention", "figures", "--device", "cpu")
    assert {path.suffix for path in Path("figures").iterdir()} == {".png", ".pdf", ".csv", ".txt", ".tex"}
    frame = pd.read_csv("figures/caption-1.csv")
    assert len(frame) == len(one.split()) + 1, "the end, too, or what would have come"
    np.testing.assert_allclose(frame.drop(columns="word").sum(axis=1), 1, atol=1e-4)
    Path("text.png").write_text("no picture")
    assert "cannot read the image text.png: it is no picture" in comt("caption", run, "text.png", status=2)
    assert "cannot read the image gone.png: No such file" in comt("caption", run, "gone.png", status=2)
    cut = Path("scene.png").read_bytes()[:-40]
    Path("cut.png").write_bytes(cut)
    said = comt("caption", run, "scene.png", "text.png", "cut.png", "other.jpg", "--device", "cpu", status=1)
    assert said.startswith(f"{one} "), "what can be read is captioned"
    assert re.search(r"cannot read the image text\.png: .*cannot read the image cut\.png: ", said)
    assert "9 captions of each image cannot be had from a beam of 5" in comt(
        "caption", run, "scene.png", "--n-best", "9", status=2
    )
    assert "comt caption and analyze-gates take it" in comt("translate", run, "-i", "text.png", status=2)
