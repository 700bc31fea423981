"""`comt evaluate`: a finished run of any task comes to what it came to, and gets what its result lacks."""

from __future__ import annotations

import json
import math

import pytest
from tiny_runs import caption_spec, glue_spec, image_spec, masked_spec, pair_spec, pictures, tiny_spec, train
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.tasks.images import ImageClassification
from comt_cli.training.evaluation import Evaluation
from comt_cli.training.loop import merge

SHORT = {"steps": 4, "warmup_steps": 1}
TASKS = {
    "train-lm": lambda corpus: tiny_spec(corpus, **SHORT, test_share=0.5),
    "train-bert": lambda corpus: masked_spec(corpus, **SHORT, select="best", evaluate_every=2),
    "finetune": lambda corpus: glue_spec(corpus, **SHORT),
    "train-resnet": lambda _: image_spec(steps=4),
    "train-mt": lambda _: pair_spec(**SHORT, average_last=2, average_every=2),
    "train-caption": lambda _: caption_spec(**SHORT),
}
FAST = ("train-lm", "finetune")
LACKS = {
    "train-lm": ("bits_per_byte", "test_perplexity"),
    "train-bert": ("masked_accuracy",),
    "finetune": ("score", "test_accuracy"),
    "train-resnet": ("top5_accuracy",),
    "train-mt": ("bleu", "test_chrf"),
    "train-caption": ("cider", "test_bleu4"),
}


def evaluate(*arguments: object):
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments), "--device", "cpu"])


def without(result: dict, keys: tuple[str, ...]) -> dict:
    """A result as it was before these metrics were there, and one of them for want of a program."""
    left = json.loads(json.dumps({key: value for key, value in result.items() if key not in keys}))
    for key in keys:
        told = left["test_evaluation"] if key.startswith("test_") else left
        metric = key.removeprefix("test_")
        told.get("signatures", {}).pop(metric, None)
        told.setdefault("missing", {})[metric] = "needs Java"
    return left


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=[] if each in FAST else [pytest.mark.slow]) for each in TASKS]
)
def test_what_a_result_lacks_is_added_and_nothing_else_changes(command, tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(ImageClassification, "prepare", lambda *_: pictures())
    directory = train(TASKS[command](tiny_corpus), tmp_path)
    files = [path for path in directory.path.rglob("*") if path.is_file() and path.name not in (".lock", "result.json")]
    before, kept = {path: path.read_bytes() for path in files}, directory.result()
    assert set(LACKS[command]) <= kept.keys()

    assert "added: nothing" in evaluate(directory.path).stdout
    assert directory.result() == kept

    directory.result_file.write_text(json.dumps(without(kept, LACKS[command])))
    done = evaluate(kept["id"][:8], "--runs", tmp_path)
    assert done.exit_code == 0, done.output
    found = directory.result()
    (again,) = found.pop("evaluated_again")
    assert sorted(again["added"]) == sorted(LACKS[command])
    for told in (found, found.get("test_evaluation", {})):
        if told.get("missing") == {}:
            del told["missing"]
    assert found == kept
    assert {path: path.read_bytes() for path in files} == before


@pytest.fixture(scope="module")
def language(tmp_path_factory, tiny_corpus):
    folder = tmp_path_factory.mktemp("runs")
    return folder, train(tiny_spec(tiny_corpus, **SHORT, test_share=0.5), folder)


def test_a_value_that_comes_out_otherwise_is_named_and_nothing_is_added(language, tiny_corpus):
    folder, directory = language
    text, kept = directory.result_file.read_text(), directory.result()
    wrong = without(kept | {"test_perplexity": kept["test_perplexity"] * 1.01}, ("bits_per_byte",))
    directory.result_file.write_text(json.dumps(wrong))
    refused = evaluate(directory.path).exception
    assert (type(refused).exit_status, "test_perplexity:" in refused.message) == (1, True)
    assert directory.result() == wrong
    directory.result_file.write_text(text)

    other = train(tiny_spec(tiny_corpus, **SHORT, seed=2), folder)
    other.checkpoint_file.write_bytes(other.checkpoint_file.read_bytes()[:-500])
    assert "checkpoint.pt is not a checkpoint, or was cut off" in evaluate(other.path).exception.message
    other.checkpoint_file.unlink()
    assert "checkpoint.pt is missing" in evaluate(directory.path, other.path).exception.message
    other.result_file.write_text(json.dumps(other.result() | {"state": "diverged"}))
    assert "has diverged" in evaluate(other.path).exception.message
    other.result_file.unlink()
    assert "has not ended" in evaluate(other.path).exception.message


@pytest.mark.parametrize(
    ("before", "tolerance", "differing"),
    [
        ({"loss": 3.001}, 1e-3, []),
        ({"loss": 3.001}, 1e-4, ["loss: 3.001 before, 3 now"]),
        ({"perplexity": math.exp(3.002)}, 1e-3, []),  # the loss is off by less than a thousandth
        ({"perplexity": math.exp(3.004)}, 1e-3, ["perplexity: 20.166 before, 20.0855 now"]),
        ({"test_accuracy": 80.9}, 1e-3, []),  # of 100 samples one
        ({"test_accuracy": 82.0}, 1e-3, ["test_accuracy: 82 before, 80 now"]),
        ({"evaluation": {"samples": 99}}, 1e-3, ["samples: 99 before, 100 now"]),
        ({"test_evaluation": {"tokens": 9}}, 1e-3, []),  # of a version that noted no samples
    ],
)
def test_how_far_values_may_be_off(before, tolerance, differing):
    found = {
        "validation": Evaluation(3.0, {"perplexity": math.exp(3)}, {"samples": 100}),
        "test": Evaluation(0.0, {"accuracy": 80.0}, {"samples": 100}),
    }
    assert merge({**before}, found, tolerance, {"accuracy"})[1] == differing


def test_a_new_metric_changes_nothing_that_is_told_of_the_others():
    told = {"signature": "old", "signatures": {"meteor": "old"}, "missing": {"cider": "came later"}}
    result = {"loss": 3.0, "meteor": 30.0, **told}
    here = Evaluation(3.0, {"cider": 90.0, "meteor": None}, {"samples": 9}, {"cider": "new"}, {"meteor": "needs Java"})
    assert merge(result, {"validation": here}, 1e-3, set()) == (["cider"], [], 0.0)
    told = {"signature": "old", "signatures": {"meteor": "old", "cider": "new"}, "missing": {}}
    assert result == {"loss": 3.0, "meteor": 30.0, "cider": 90.0, **told}


def test_other_data_is_refused(language, monkeypatch):
    _, directory = language
    spec = directory.spec()
    dataset = spec.task.prepare(spec.settings)
    dataset.content_hash = "another"
    monkeypatch.setattr(type(spec.task), "prepare", lambda *_: dataset)
    said = f"has changed since {directory.path} was planned"
    assert said in evaluate(directory.path).exception.message
