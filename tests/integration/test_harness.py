"""`comt evaluate --tasks`: runs and folders on tasks of lm-evaluation-harness give what the harness itself gives."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny_runs import masked_spec, tiny_spec, train
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.data.glue.sources.text_tasks import told_in
from comt_cli.errors import UserError
from comt_cli.harness.python_docs import CHOICE, CLOZE, items_of, second_half, write_tasks
from comt_cli.runs.evaluations import read_result, results_of

pytestmark = [
    pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-evaluation-harness is not installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of files that `datasets` leaves to the collector
]
SHORT = {"steps": 4, "warmup_steps": 1, "data": {"sequence_length": 512}}


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    import datasets
    import huggingface_hub

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tiny_corpus):
    """Two tiny runs: plain, and with gates, which brings code of its own."""
    folder = tmp_path_factory.mktemp("runs")
    return {method: train(tiny_spec(tiny_corpus, method=method, **SHORT), folder) for method in ("pre-ln", "comt")}


def evaluate(*given: object):
    return CliRunner().invoke(app, ["evaluate", *map(str, given), "--device", "cpu"])


def refusal(*given: object) -> str:
    done = evaluate(*given)
    assert isinstance(done.exception, UserError), done.output
    assert done.exception.exit_status == 2
    return str(done.exception)


def stored(run) -> dict:
    return {result["task"]: result for result in results_of(run.path)}


@pytest.mark.parametrize("method", ["pre-ln", "comt"])
def test_a_run_gives_what_the_harness_gives_on_its_exported_folder(method, runs, tmp_path, monkeypatch):
    import lm_eval  # here: every process that collects the tests would wait for it

    done = evaluate(runs[method].path, "--tasks", f"{CLOZE},{CHOICE}", "--limit", 8, "--batch-size", 4)
    assert done.exit_code == 0, done.output
    found = stored(runs[method])
    assert found.keys() == {CLOZE, CHOICE}
    folder = tmp_path / method
    assert CliRunner().invoke(app, ["export", str(runs[method].path), str(folder)]).exit_code == 0
    monkeypatch.setattr(lm_eval.evaluator, "add_env_info", lambda _: None)  # which takes seconds
    own = write_tasks(lambda *_: None)
    manager = lm_eval.tasks.TaskManager(include_path=str(own), include_defaults=False)
    arguments = {"pretrained": str(folder), "trust_remote_code": True}
    expected = lm_eval.simple_evaluate(
        "hf", arguments, [CLOZE, CHOICE], batch_size=4, device="cpu", limit=8, bootstrap_iters=2, task_manager=manager
    )
    for task, result in found.items():
        theirs, samples = expected["results"][task], expected["samples"][task]
        assert [result[key] for key in ("count", "limit", "num_fewshot", "version")] == [8, 8, 0, "1"]
        for name, metric in result["metrics"].items():
            assert metric["value"] == pytest.approx(theirs[f"{name},none"], rel=1e-6)
            assert metric["values"] == pytest.approx([sample[name] for sample in samples], rel=1e-5)
        item, (context, answer) = samples[0]["doc"], samples[0]["arguments"][0]
        assert (context, answer) == (item["context"], f" {item['word'] if task == CLOZE else item['choices'][0]}")
        assert result["metrics"]["acc"]["stderr"] == pytest.approx(theirs["acc_stderr,none"])
    # A folder that brings code is run only if it is trusted; its numbers are the same.
    if method == "comt":
        assert "--trust-remote-code" in refusal(folder, "--tasks", CHOICE)
    again = evaluate(folder, "--tasks", CHOICE, "--limit", 8, "--batch-size", 4, "--trust-remote-code")
    kept = read_result(Path(again.stderr.split(f"{CHOICE}, first 8: is in ")[1].split("\n")[0]))
    assert kept["items"] == found[CHOICE]["items"]
    assert kept["metrics"] == found[CHOICE]["metrics"]


def test_nothing_is_computed_twice_also_after_a_stop(runs, monkeypatch):
    """A stop in the second batch of the second task: the first task, and the first batch, are kept."""
    from lm_eval.models.huggingface import HFLM

    asked, model_call = [], HFLM._model_call

    def counted(self, inps, *given, **named):
        asked.append(len(inps))
        if len(asked) == stop_at:
            raise KeyboardInterrupt
        return model_call(self, inps, *given, **named)

    monkeypatch.setattr(HFLM, "_model_call", counted)
    given = (runs["pre-ln"].path, "--tasks", f"{CLOZE},{CHOICE}", "--limit", 6, "--batch-size", 4)
    stop_at = 4
    assert evaluate(*given).exit_code == 130
    assert asked == [4, 2, 4, 4]
    asked, stop_at = [], 0
    assert evaluate(*given).exit_code == 0
    assert sum(asked) == 6 * 4 - 4
    asked = []
    done = evaluate(*given)
    assert (done.exit_code, asked) == (0, [])
    assert f"{CLOZE}, first 6: was in " in done.stderr
    assert not [*runs["pre-ln"].path.rglob("*.answers*")]


def test_a_result_is_taken_for_the_same_weights_and_task_alone(runs, tmp_path):
    data, task = tmp_path / "data.jsonl", tmp_path / "own.yaml"
    data.write_text("".join(json.dumps({"q": "a", "is": each, "other": 1 - each}) + "\n" for each in (0, 1, 0)))
    kept = {"task": "own", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}}
    kept |= {"test_split": "test", "output_type": "multiple_choice", "doc_to_text": "q", "doc_to_choice": ["b", "c"]}
    run = runs["comt"]

    def found(target: str) -> tuple[bool, float]:
        task.write_text(json.dumps({**kept, "doc_to_target": target}))
        done = evaluate(run.path, "--tasks", task)
        assert done.exit_code == 0, done.output
        return "own: was in " in done.stderr, stored(run)["own"]["metrics"]["acc"]["value"]

    first = found("is")
    assert first[0] is False
    assert found("is") == (True, first[1])
    assert found("other") == (False, pytest.approx(1 - first[1]))  # the same requests, with other right answers
    file = run.path / "evaluations" / "own.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"weights": "others"}))
    assert found("other")[0] is False
    assert [path.name for path in file.parent.glob("own*")] == ["own.json"]


def test_what_cannot_be_evaluated_is_refused_before_anything_is_computed(runs, tiny_corpus, tmp_path, monkeypatch):
    import lm_eval.tasks

    own = runs["pre-ln"].path
    assert "nothing-here is not a run directory" in refusal("nothing-here", "--tasks", CLOZE)
    masked = train(masked_spec(tiny_corpus, steps=2, warmup_steps=1, evaluate_every=2), tmp_path / "runs")
    assert "not a language model that continues texts" in refusal(own, masked.path, "--tasks", CLOZE)
    assert "need --tasks" in refusal(own, "--batch-size", 3)
    assert "names no task" in refusal(own, "--tasks", ",")
    usage = evaluate(own, "--tasks", CLOZE, "--limit", 0)
    assert (usage.exit_code, "greater than or equal to 1" in usage.output) == (2, True)

    manager = lm_eval.tasks.TaskManager
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", lambda **given: manager(**given | {"include_defaults": False}))
    assert "did you mean python-docs-cloze?" in refusal(own, "--tasks", f"{CHOICE},python-doc-cloze")
    task = {"task": "far", "dataset_path": "nobody/nothing", "output_type": "loglikelihood", "test_split": "test"}
    (tmp_path / "far.yaml").write_text(json.dumps({**task, "doc_to_text": "a", "doc_to_target": "b"}))
    said = refusal(own, "--tasks", f"{CLOZE},{tmp_path / 'far.yaml'}")
    assert "nobody/nothing" in said
    assert "with a network" in said

    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["BertForMaskedLM"]}')
    assert "holds BertForMaskedLM, not a language model" in refusal(folder, "--tasks", CLOZE)
    bare = tmp_path / "bare"
    assert CliRunner().invoke(app, ["export", str(own), str(bare)]).exit_code == 0
    (bare / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert "has no bos_token and no eos_token" in refusal(bare, "--tasks", CLOZE)
    assert "fetching it from the Hugging Face hub failed" in refusal("nobody/nothing", "--tasks", CLOZE)
    short = train(tiny_spec(tiny_corpus, steps=2, warmup_steps=1), tmp_path / "runs")
    assert "longer than its 48 tokens" in refusal(short.path, "--tasks", CHOICE)
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    assert "lm-evaluation-harness, which is not installed" in refusal(own, "--tasks", CLOZE)


NOUNS = ("handle", "stream", "socket", "window", "folder", "header")
DOCUMENTS = [
    f"Return the {noun} of a thing.  It is called when the\n{noun} was closed by the user.  The {noun} stays open."
    for noun in NOUNS
]


def test_items_are_of_the_test_split_and_of_no_sentence_that_was_trained_on():
    assert second_half(["ab", "cd", "efgh"]) == ["efgh"]
    cloze, choice = items_of(DOCUMENTS)
    assert {"context": "Return the handle of a", "word": "thing"} in cloze
    assert len(cloze) == 2 * len(choice) == 2 * len(DOCUMENTS)  # a document's first sentence has nothing before it
    right = [item["choices"][item["answer"]] for item in choice]
    assert right == [f"It is called when the {noun} was closed by the user." for noun in NOUNS]
    for item, noun in zip(choice, NOUNS, strict=True):
        assert len({*item["choices"]}) == 4
        assert [noun in each for each in item["choices"]].count(True) == 1  # the others are of other documents
    sentences = [*right, "Return the handle of a thing."]
    told = told_in(["Before: return `the handle` of\na thing, or not."], sentences, lambda *_: None)
    assert told == {sentences[-1]}
    assert items_of(DOCUMENTS, told)[0] == cloze[1:]
