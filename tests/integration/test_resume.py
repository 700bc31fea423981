"""A run that is killed at any moment, and started again, ends as one that was never disturbed: to the bit. If
its files were damaged meanwhile, it says which and what to do, and is not trained to other numbers."""

from __future__ import annotations

import random
import re

import pytest
import torch
from test_interruptions import After
from tiny_runs import assert_resumes, assert_same_run, stopped_at, tiny_spec, train

from comt_cli.errors import UserError
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.training.checkpoint import random_states, restore_random_states

STEPS = {"steps": 30, "save_every": 3, "log_every": 2, "evaluate_every": 10}


# What is written in the order in which it is: a kill at each of these moments, one after the other, in one run.
MOMENTS = [
    ("after environment.json is renamed", 1),
    ("half of a checkpoint is written", 1),
    ("after a checkpoint is renamed", 2),
    ("after a flush to disk", 17),
    ("half a line of timings.jsonl", 3),
    ("after the final checkpoint is renamed", 1),
    ("half a line of metrics.jsonl", 1),  # the last evaluation
    ("before result.json is renamed", 1),
]


def test_killed_at_every_kind_of_moment(tiny_corpus, nursery, tmp_path):
    spec = tiny_spec(tiny_corpus, method="transponder", **STEPS)
    expected = train(spec, tmp_path / "undisturbed")
    directory = nursery.kill_at_each(MOMENTS, spec, tmp_path / "killed")
    leftovers = list(directory.path.glob(".*.tmp"))
    assert leftovers, "the last death left a file half way"
    assert nursery.run(spec, tmp_path / "killed") == 0
    assert_same_run(directory, expected)
    assert not list(directory.path.glob(".*.tmp"))
    assert directory.state() is RunState.done


def test_every_precision_and_optimiser_resumes(tiny_corpus, tmp_path):
    for options in (
        {"precision": "bf16-mixed", "schedule": "noam", "learning_rate": 0.3},
        {"precision": "bf16-pure", "micro_batch_size": 4, "optimizer": "adamw", "weight_decay": 0.1},
    ):
        spec = tiny_spec(tiny_corpus, steps=8, log_every=1, save_every=3, **options)
        assert_resumes(spec, tmp_path, 6)  # the start, then step 5


def test_what_follows_training_follows_updates(tiny_corpus, tmp_path):
    """ProRes' a is that of the last update, also with micro-batches, recomputed blocks and after a resumption."""
    shares = []
    for number, options in enumerate(({}, {"micro_batch_size": 4, "activation_checkpointing": True})):
        spec = tiny_spec(
            tiny_corpus, method={"name": "prores", "updates": 5}, steps=8, log_every=1, save_every=3, **options
        )
        expected = train(spec, tmp_path / f"undisturbed{number}")
        stopped = stopped_at([6], spec, tmp_path / "runs")  # the start, then step 5
        states = [torch.load(stopped.checkpoint_file, weights_only=True)["model"]]
        directory = train(spec, tmp_path / "runs")
        assert_same_run(directory, expected)
        states.append(torch.load(directory.checkpoint_file, weights_only=True)["model"])
        shares.append([[value.item() for key, value in state.items() if "share" in key] for state in states])
    of_update = [[min(update / (5 * block), 1) for block in (1, 1, 2, 2)] for update in (2, 7)]
    for found in shares:
        for mine, wanted in zip(found, of_update, strict=True):
            assert mine == pytest.approx(wanted)


def test_random_states_go_on(tiny_corpus):
    import numpy as np

    cpu = torch.device("cpu")

    def draw():
        return [random.random(), random.gauss(0, 1), np.random.normal(), np.random.rand(), torch.rand(3).tolist()]

    draw()  # an odd number of normal deviates: both generators keep the other of the pair
    states = random_states(cpu)
    expected = draw()
    restore_random_states(states, cpu)
    assert draw() == expected


def test_a_foreign_checkpoint_is_refused(tiny_corpus, tmp_path):
    spec, other = (tiny_spec(tiny_corpus, steps=4, seed=seed) for seed in (1, 2))
    directory = train(other, tmp_path)
    target = RunDirectory.of(tmp_path, spec)
    target.create(spec)
    target.checkpoint_file.write_bytes(directory.checkpoint_file.read_bytes())
    with pytest.raises(UserError, match=f"belongs to run {other.id}, not {spec.id}") as refused:
        train(spec, tmp_path)
    assert "Delete" not in str(refused.value.hint), "it may be all that is left of the other"


def test_a_cut_metrics_file_is_not_filled_with_zeros(tiny_corpus, tmp_path):
    spec = tiny_spec(tiny_corpus, steps=8, log_every=1, save_every=2)
    directory = stopped_at([6], spec, tmp_path)
    directory.metrics_file.write_text("")
    with pytest.raises(UserError, match="has 0 bytes, but its checkpoint expects at least"):
        train(spec, tmp_path)
    assert directory.metrics_file.read_bytes() == b""


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """Files that a stopped run has saved, by the name of its file."""
    return {}


@pytest.fixture
def stopped(tiny_corpus, tmp_path, unfinished) -> tuple[RunSpec, RunDirectory]:
    spec = tiny_spec(tiny_corpus, steps=6, save_every=2, log_every=1)
    directory = RunDirectory.of(tmp_path, spec)
    if not unfinished:
        stopped_at([4], spec, tmp_path)
        unfinished.update({path.name: path.read_bytes() for path in directory.path.iterdir() if path.is_file()})
    else:
        directory.create(spec)
        for name, content in unfinished.items():
            (directory.path / name).write_bytes(content)
    return spec, directory


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state["progress"].update(stride=1), "unexpected keyword argument 'stride'"),
        (lambda state: state.pop("optimizer"), "KeyError: 'optimizer'"),
        (lambda state: state["random"].update(torch=torch.zeros(3)), "cannot be restored: TypeError: "),
        (lambda state: state["model"].popitem(), "cannot be restored: RuntimeError: "),
    ],
)
def test_a_checkpoint_of_other_things_is_refused(stopped, tmp_path, change, said):
    spec, directory = stopped
    state = torch.load(directory.checkpoint_file, weights_only=True)
    change(state)
    torch.save(state, directory.checkpoint_file)
    with pytest.raises(UserError, match=re.escape(said)) as told:
        train(spec, tmp_path)
    assert str(directory.checkpoint_file) in told.value.message
    assert f"Delete {directory.checkpoint_file}" in str(told.value.hint)


def test_metrics_that_are_replaced_while_the_run_writes_them(tiny_corpus, tmp_path):
    """They went on into a file without a name, and the run ended as done with nothing to show."""
    spec = tiny_spec(tiny_corpus, steps=6, save_every=100, log_every=1)
    directory = RunDirectory.of(tmp_path, spec)

    def replace() -> None:
        directory.metrics_file.unlink()
        directory.metrics_file.write_text("")

    with pytest.raises(UserError, match=r"metrics\.jsonl was deleted or replaced during training"):
        train(spec, tmp_path, listener=After(3, replace))
    assert directory.result() is None
