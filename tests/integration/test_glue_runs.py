"""Runs of fine-tuning: from a masked language model to a table, stopped and resumed, divided, measured, and refused."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from glue_cases import glue_spec
from tiny_runs import (
    BERT,
    TRAIN_MASKED,
    StopAt,
    Stopped,
    assert_same_run,
    dataset_of,
    masked_spec,
    train,
    training,
)
from typer.testing import CliRunner
from worlds import run_together

from comt_cli.app import app
from comt_cli.data.glue.batches import GlueBatch
from comt_cli.data.split import IGNORE
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import read_state
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedClassifier, LoadedMaskedModel
from comt_cli.methods import catalogue
from comt_cli.models.build import materialise, model_of
from comt_cli.recipe.load import load_recipe
from comt_cli.recipe.problems import RecipeError
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.scoring.classification import classification_scores
from comt_cli.tasks.glue import Glue
from comt_cli.tasks.settings.glue import GlueSettings
from comt_cli.tasks.settings.masked_lm import MaskedSettings
from comt_cli.training.events import ignore
from comt_cli.training.loop import Training
from comt_cli.training.objective import NumberLoss
from comt_cli.training.parallel import join_world
from comt_cli.training.processes import StopSignal
from comt_cli.training.start import check_starts


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


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"new": ("classifier",), "drop": ("head",)}, r"pooler.weight \[16, 16\] is not in the source"),
        ({"new": ("pooler", "classifier")}, r"head.bias \[261\] of the source has no place in the model"),
        ({"new": ("poler",), "drop": ("head",)}, "new names poler, and the model has no such part"),
    ],
)
def test_weights_that_do_not_all_load_are_refused(parts, said, source, tiny_corpus):
    with pytest.raises(UserError, match=said):
        check_starts([glue_spec(tiny_corpus, start=source, parts=parts)])


def test_another_vocabulary_is_refused_by_name(tiny_corpus, source):
    check_starts([glue_spec(tiny_corpus, start=source)])
    other = masked_spec(tiny_corpus, data={"validation_fraction": 0.3})
    with pytest.raises(UserError) as refused:
        check_starts([glue_spec(tiny_corpus, start=other)])
    assert refused.value.message == (
        "comt/tiny-glue a-row, tiny, seed 1 cannot start from comt/tiny-masked a-row, tiny, seed 1: "
        "data.validation_fraction is 0.2 here and 0.3 there, so that its vocabulary is another"
    )
    assert refused.value.exit_status == 2
    elsewhere = masked_spec(f"{tiny_corpus.removesuffix('*.txt')}0*.txt")
    with pytest.raises(UserError, match=r"data\.corpus is .* there"):
        check_starts([glue_spec(tiny_corpus, start=elsewhere)])


def test_another_vocabulary_of_the_same_size_is_refused(tiny_corpus, source, tmp_path):
    """Such as that of another edition of the text; the settings are the same."""
    directory = train(source, tmp_path)
    state = read_state(directory.checkpoint_file)
    state["tokenizer"]["extras"] = state["tokenizer"]["extras"][::-1]
    torch.save(state, tmp_path / "other")  # the weights are still read from the file
    (tmp_path / "other").replace(directory.checkpoint_file)
    with pytest.raises(UserError) as refused:
        train(glue_spec(tiny_corpus, start=source), tmp_path)
    assert refused.value.message.startswith(
        "comt/tiny-glue a-row, tiny, seed 1 cannot start from comt/tiny-masked a-row, tiny, seed 1: its tokens are "
    )
    assert "comt train-bert --fresh trains it anew" in str(refused.value.hint)


# ---- how it trains


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("undisturbed")


def test_stopped_at_any_event_it_ends_the_same(undisturbed, source, tiny_corpus, tmp_path):
    spec = glue_spec(tiny_corpus, task="scene-similarity", start=source)
    for folder in (undisturbed, tmp_path):
        train(source, folder)
    expected = train(spec, undisturbed)
    stops = 0
    for event in (1, 3, 2, 5, 2, 4):
        try:
            train(spec, tmp_path, listener=StopAt(event))
        except Stopped:
            stops += 1
    train(spec, tmp_path)
    assert stops > 3
    assert_same_run(RunDirectory.of(tmp_path, spec), expected)


def test_killed_it_ends_with_the_same_bits(undisturbed, source, nursery, tiny_corpus, tmp_path):
    spec = glue_spec(tiny_corpus, start=source)
    for folder in (undisturbed, tmp_path):
        train(source, folder)
    expected = train(spec, undisturbed)
    for moment in (("half of a checkpoint is written", 1), ("after a checkpoint is renamed", 1)):
        assert nursery.run(spec, tmp_path, moment) == -signal.SIGKILL
    assert_same_run(train(spec, tmp_path), expected)


def test_micro_batches_change_rounding_alone(tiny_corpus, tmp_path):
    """Dropout follows the samples, and the parts of a batch are padded by themselves."""
    losses = [
        [line["loss"] for line in train(glue_spec(tiny_corpus, **sizes), tmp_path).metrics() if "loss" in line]
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


def test_two_processes_are_as_one(nursery, tiny_corpus, tmp_path):
    spec = glue_spec(tiny_corpus, task="scene-similarity", evaluation_batch_size=301)  # the last batch is one's alone
    alone, together = train(spec, tmp_path / "alone"), RunDirectory.of(tmp_path / "two", spec)
    run_together(nursery, 2, share, spec.model_dump_json(), str(tmp_path / "two"))
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


def test_the_loss_of_a_number_is_its_squared_error():
    logits, targets = torch.tensor([[1.5], [2.0], [7.0]]), torch.tensor([1.0, 4.5, float(IGNORE)])
    assert float(NumberLoss.loss_of(logits, targets)) == pytest.approx(0.25 + 6.25)


# ---- what it comes to


@pytest.mark.parametrize(("task", "classes"), [("scene-nli", 3), ("scene-similarity", 1)])
def test_what_an_evaluation_counts(task, classes, undisturbed, source, tiny_corpus):
    train(source, undisturbed)
    spec = glue_spec(tiny_corpus, task=task, start=source)
    directory = train(spec, undisturbed)
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


def test_a_measure_without_a_value_says_why(tiny_corpus, tmp_path):
    """A network that always says the same number has no correlation."""
    run = training(glue_spec(tiny_corpus, task="scene-similarity"), tmp_path)
    run.task.build()
    run.task.place()
    for parameter in run.task.model.classifier.parameters():
        torch.nn.init.zeros_(parameter)
    found = run.task.evaluate(run.task.evaluation_batches(400, run.task.validation), run.task.validation)
    assert found.metrics == {"score": None}
    assert "undefined" in found.missing["score"]


def test_a_network_that_predicts_one_class_says_so(tiny_corpus, tmp_path, monkeypatch):
    run = training(glue_spec(tiny_corpus), tmp_path)
    run.task.build()
    run.task.place()

    def remark():
        split = run.task.validation
        return run.task.evaluate(run.task.evaluation_batches(400, split), split).signed.get("remark")

    with monkeypatch.context() as patch:
        several = lambda tokens_BT, _: F.one_hot(tokens_BT.sum(1) % 3, 3).float()  # noqa: E731
        patch.setattr(run.task.objective, "logits", several)
        assert remark() is None
    for parameter in run.task.model.classifier.parameters():
        torch.nn.init.zeros_(parameter)
    assert remark() == "predicts one class"


def test_other_verbs_read_it(tiny_corpus, source, undisturbed, tmp_path, quick_figures):
    train(source, undisturbed)
    plain = train(glue_spec(tiny_corpus, start=source), undisturbed)
    with pytest.raises(UserError, match="is a checkpoint of comt finetune, not of a masked language model") as refused:
        load(plain.path, LoadedMaskedModel)
    assert refused.value.hint == "comt analyze-gates, plot-cosine and export take it."
    codec = load(plain.path, LoadedClassifier).text_codec()
    assert codec.pieces(codec.encode("ab")) == ["<s>", "a", "b", "<sep>"]
    gated = train(glue_spec(tiny_corpus, method="eau", steps=1, warmup_steps=0, evaluate_every=None), tmp_path)
    for verb, figure in (("plot-cosine", "residual-stream.png"), ("analyze-gates", "gate-summary.png")):
        result = CliRunner().invoke(app, [verb, str(gated.path), "--text", "a red letter", "--out", str(tmp_path)])
        assert result.exit_code == 0, result.output
        assert (tmp_path / figure).is_file()
    result = CliRunner().invoke(app, ["export", str(plain.path), str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["architectures"], len(config["id2label"])) == (["BertForSequenceClassification"], 3)


# ---- recipes and the command line

ROWS = """\
rows:
  post-ln: {method: post-ln}
  no-pre-training: {method: post-ln, start: null}
"""
RECIPE = """\
title: A tiny BERT
command: train-bert
baseline: post-ln
seeds: [1]
settings:
  model: {model}
  data: {{corpus: "{corpus}", tokenizer: bytes, sequence_length: 48, validation_fraction: 0.2}}
  train: {train}
rows:
  post-ln: {{method: post-ln}}
columns:
  bytes: {{}}
scales:
  smoke: {{description: a few seconds}}
"""
START = "start: {recipe: first.yaml, seed: 1, new: [pooler, classifier], drop: [head]}\n"


@pytest.fixture
def recipes(tiny_corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    short = TRAIN_MASKED | {"steps": 3, "evaluate_every": None}
    first = RECIPE.format(model=json.dumps(BERT), corpus=tiny_corpus, train=json.dumps(short))
    second = (
        first.replace("train-bert", "finetune")
        .replace("baseline: post-ln\n", f"baseline: post-ln\n{START}")
        .replace("tokenizer: bytes", "tokenizer: bytes, task: scene-similarity, train_examples: 60")
        .replace("rows:\n  post-ln: {method: post-ln}\n", ROWS)
        .replace("  bytes: {}\n", "  pearson: {metric: test_pearson}\n  spearman: {metric: test_spearman}\n")
    )
    (tmp_path / "first.yaml").write_text(first, encoding="utf-8")
    (tmp_path / "second.yaml").write_text(second, encoding="utf-8")
    return tmp_path


def test_from_pre_training_to_a_table(recipes):
    def comt(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    table = comt("finetune", "--recipe", "second.yaml", "--jobs", "1", "--device", "cpu")
    assert len(list((recipes / "runs/by-id").glob("*/result.json"))) == 3, "one run fills all columns of a task"
    assert comt("report", "second.yaml") in table
    assert "4 done" in comt("status", "second.yaml")
    rows = json.loads(comt("show", "second.yaml", "--json"))
    assert {(row["row"], bool(row["start"])) for row in rows} == {("post-ln", True), ("no-pre-training", False)}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("scene-similarity", "scene-similarty", "data.task: 'scene-similarty' is not one of"),
        ("test_spearman", "test_mcc", "scene-similarity is measured by pearson and spearman"),
        ("test_spearman", "unseen_accuracy", "columns.spearman.metric: there is no unseen_accuracy at scale smoke"),
        ('"batch_size": 4', '"compile": true, "batch_size": 4', "train.compile: every batch has another shape"),
        ("sequence_length: 48", "sequence_length: 49", "longer than the model's 48 positions"),
    ],
)
def test_what_is_wrong_is_told_at_loading(old, new, said, recipes):
    path = recipes / "second.yaml"
    path.write_text(path.read_text().replace(old, new), encoding="utf-8")
    with pytest.raises(RecipeError) as error:
        load_recipe(path, catalogue())
    assert said in str(error.value)


def test_another_part_of_a_corpus_is_told():
    c4 = {"corpus": "c4", "tokenizer": "bytes", "max_train_tokens": 5000}
    own = GlueSettings.model_validate(
        {"model": {"family": "bert"}, "data": {"task": "cola", **c4}, "train": {"steps": 1}}
    )
    for there, said in (
        (5000, None),
        (9000, "data.max_train_tokens is 5000 here and 9000 there, so that its text is another"),
    ):
        source = MaskedSettings.model_validate(
            {"model": {"family": "bert"}, "data": c4 | {"max_train_tokens": there}, "train": {"steps": 1}}
        )
        assert Glue().start_mismatch(own, source) == said


def test_another_vocabulary_is_told_before_anything_is_trained(recipes):
    path = recipes / "second.yaml"
    path.write_text(path.read_text().replace("validation_fraction: 0.2", "validation_fraction: 0.1"), encoding="utf-8")
    result = CliRunner().invoke(app, ["finetune", "--recipe", "second.yaml", "--device", "cpu"])
    assert isinstance(result.exception, UserError)
    assert result.exception.exit_status == 2
    assert "own/second post-ln, pearson, seed 1 cannot start from own/first post-ln" in result.exception.message
    assert "data.validation_fraction is 0.1 here and 0.2 there" in result.exception.message
    assert not (recipes / "runs/by-id").exists()
