"""Runs that start from weights and train only a part: what was added to them, or LoRA's matrices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from same_bits import Reason, assert_same_bits, differ
from tiny_recipe import quick_recipe
from tiny_runs import assert_resumes, assert_same_run, glue_spec, masked_spec, stopped_at, tiny_spec, train, training
from worlds import comt, run_together, train_together

from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import average, read_state, write_state
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.models.accounting import cost_of
from comt_cli.models.build import model_of
from comt_cli.models.memory import memory_of
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec, RunStart
from comt_cli.training.objective import SummedLoss

pytestmark = pytest.mark.usefixtures("quick_workers")
STEPS = {"steps": 8, "log_every": 1, "save_every": 2, "weight_decay": 0.1}
LORA = {"pretrained": "lora", "lora_rank": 3, "lora_alpha": 6.0, "added_learning_rate": 0.02}
FROZEN = {"pretrained": "frozen", "added_learning_rate": 0.02, "added_weight_decay": 0.0}


@pytest.fixture
def source(tiny_corpus: str) -> RunSpec:
    return tiny_spec(tiny_corpus, method="pre-ln", **STEPS)


def started(source: RunSpec, corpus: str, method: str = "comt", **settings: object) -> RunSpec:
    """A run with the source's weights, to which the method's gates are added."""
    spec = tiny_spec(corpus, method=method, seed=7, **STEPS | settings)
    new = {name.partition(".gates.")[0] + ".gates" for name in model_of(spec).state_dict() if ".gates." in name}
    return spec.model_copy(update={"row": "started", "start": RunStart(run=source, new=tuple(sorted(new)))})


def weights(directory: RunDirectory) -> dict[str, torch.Tensor]:
    return read_state(directory.checkpoint_file)["model"]


def test_frozen_weights_stay_and_what_was_added_learns(source, tiny_corpus, tmp_path):
    before = weights(train(source, tmp_path))
    spec = started(source, tiny_corpus, **FROZEN)
    half = stopped_at([7], spec, tmp_path)
    added = {name for name in model_of(spec).state_dict() if name not in before}
    of_optimizer = read_state(half.checkpoint_file)["optimizer"]["state"]
    assert len(of_optimizer) == len(added), "what is frozen has a state"
    first = weights(half)
    after = weights(train(spec, tmp_path))
    assert_same_bits({name: after[name] for name in before}, before, Reason.SAVED, "the frozen weights")
    assert all(differ(after[name], first[name]) for name in added)


def test_memory_and_products_of_what_is_frozen_are_not_counted(source, tiny_corpus):
    full, frozen, lora = (started(source, tiny_corpus, **each) for each in ({}, FROZEN, LORA))
    whole, less, adapted = map(cost_of, (full, frozen, lora))
    gates = whole.extra_parameters
    ranks = 2 * 3 * (4 * (32 + 32) + 3 * (32 + 48))  # two blocks of four maps in attention and three behind it
    assert (whole.frozen, less.frozen, adapted.frozen) == (0, *[whole.parameters - gates] * 2)
    assert (whole.adapters, less.adapters, adapted.adapters) == (0, 0, ranks)
    assert less.parameters == adapted.parameters == whole.parameters
    assert 0.6 < less.flops_per_row / whole.flops_per_row < 0.8
    every, trained = memory_of(full), memory_of(frozen)
    kept = every.activations - trained.activations
    assert every.total - kept - trained.total == 3 * 4 * less.frozen
    rows = full.settings.train.micro_batch_size or full.settings.train.batch_size
    assert kept == 4 * (whole.kept_always - less.kept_always + rows * (whole.kept_per_row - less.kept_per_row))


def test_lora_ends_merged_and_killed_it_ends_with_the_same_bits(source, tiny_corpus, nursery, tmp_path):
    for folder in ("whole", "killed"):
        before = weights(train(source, tmp_path / folder))
    spec = started(source, tiny_corpus, **LORA)
    whole = train(spec, tmp_path / "whole")
    moments = [("half of a checkpoint is written", 1), ("after a checkpoint is renamed", 1)]
    nursery.kill_at_each(moments, spec, tmp_path / "killed")
    assert_same_run(train(spec, tmp_path / "killed"), whole)
    after = weights(whole)
    assert after.keys() == model_of(spec).state_dict().keys()
    moved = {name for name in before if differ(after[name], before[name])}
    assert moved == {
        name for name in before if name.endswith(("qkv.weight", "output.weight", "up.weight", "down.weight"))
    }
    again = training(spec, tmp_path / "whole")
    (evaluation,) = again.evaluations().values()
    assert evaluation.loss == whole.result()["loss"]


def test_a_run_of_lora_that_is_under_way_loads_merged(source, tiny_corpus, tmp_path):
    train(source, tmp_path)
    spec = started(source, tiny_corpus, **LORA, keep_every=2)
    directory = stopped_at([7], spec, tmp_path)
    assert any(".lora.q_proj.A" in name for name in weights(directory))
    run = training(spec, tmp_path)
    run._load()
    with run.task.train_batches(8, 0) as batches:
        inputs = run.task.inputs(next(iter(batches))[0])
    model = load(directory.path, LoadedModel).model
    with torch.no_grad():
        losses = [
            SummedLoss(each, "reference")(*inputs) for each in (run.model, model, model_of_source(source, tmp_path))
        ]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=0)
    assert abs(losses[2] - losses[1]) > 1e-3 * losses[1]
    assert load(average(directory.path, 2, tmp_path / "mean.pt")[0], LoadedModel).spec == spec
    state = read_state(directory.checkpoint_file)
    del state["model"]["blocks.0.attention.qkv.lora.q_proj.B"]
    write_state(tmp_path / "damaged.pt", state)
    with pytest.raises(UserError, match="LoRA matrices do not fit"):
        load(tmp_path / "damaged.pt", LoadedModel)


def model_of_source(source: RunSpec, runs: Path) -> torch.nn.Module:
    return load(RunDirectory.of(runs, source).path, LoadedModel).model


def test_the_best_of_lora_are_its_last_weights(source, tiny_corpus, tmp_path):
    for folder in ("undisturbed", "stopped"):
        train(source, tmp_path / folder)
    spec = started(source, tiny_corpus, "pre-ln", pretrained="lora", select="best", evaluate_every=2, learning_rate=0.3)
    result = assert_resumes(spec, tmp_path, 14).result()
    assert result["chosen_step"] < 8


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("sharding", "settings"),
    [
        pytest.param("fsdp", LORA, id="fsdp-lora"),
        *(pytest.param(*each, id=name, marks=SLOW) for name, each in {
            "none-lora": ("none", LORA), "none-frozen": ("none", FROZEN), "fsdp-frozen": ("fsdp", FROZEN),
        }.items()),
    ],
)  # fmt: skip
def test_two_processes_train_the_same_part(sharding, settings, source, nursery, tiny_corpus, tmp_path):
    spec = started(source, tiny_corpus, **settings, sharding=sharding)
    for folder in (tmp_path, tmp_path / "one"):
        train(source, folder)
    run_together(nursery, 2, train_together, spec.model_dump_json(), str(tmp_path))
    ours, theirs = RunDirectory.of(tmp_path, spec), train(spec, tmp_path / "one")
    losses = [[line.get("loss", line.get("validation_loss")) for line in each.metrics()] for each in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    found, expected = weights(ours), weights(theirs)
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], expected[name], rtol=1e-2, atol=1e-4) for name in found)


def test_a_classifier_of_texts_is_adapted(tiny_corpus, tmp_path):
    before = weights(train(masked_spec(tiny_corpus, steps=2, evaluate_every=2), tmp_path))
    spec = glue_spec(tiny_corpus, start=masked_spec(tiny_corpus, steps=2, evaluate_every=2), pretrained="lora", steps=4)
    after = weights(train(spec, tmp_path))
    assert not differ(after["embedding.weight"], before["embedding.weight"])
    assert any(differ(after[name], before[name]) for name in before if name in after)


WRONG = {
    "without": ({"pretrained": "frozen"}, None, "settings.train.pretrained: requires weights to start from"),
    "rank": (
        {"lora_rank": 4},
        {"recipe": "first.yaml"},
        "settings.train.lora_rank: applies to pretrained: lora, and pretrained is full",
    ),
    "nothing": ({"pretrained": "frozen"}, {"recipe": "first.yaml"}, "train.pretrained is frozen, but nothing is added"),
    "rate": ({"added_weight_decay": 0.1}, {"recipe": "first.yaml"}, "train.added_weight_decay is 0.1, but nothing is"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_would_be_ignored_is_refused_with_its_key(case, tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings, start, expected = WRONG[case]
    for name, given, more in (("first", {}, {}), ("second", settings, {"start": start})):
        text = quick_recipe(name, tiny_corpus, {"plain": "pre-ln"}, {"steps": 6} | given, columns={"whole": {}}, **more)
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    assert expected in comt("show", "second.yaml", status=2)
    if case == "without":
        said = comt("show", "first.yaml", "--set", "train.pretrained=frozen", "--set", "train.steps=5", status=2)
        assert "--set train.pretrained=frozen: requires weights to start from" in said
        assert "train.steps" not in said
