"""Runs of image classifiers that are stopped, killed, shared and that diverge: the promises made for language models.

Running statistics are part of the state, and gradient norms of what is written.
"""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import pytest
import torch
from same_bits import Reason, assert_same_bits
from test_interruptions import After
from tiny_runs import assert_resumes, assert_same_run, image_spec, train, training, untimed
from worlds import run_together

from comt_cli.errors import RunInterrupted
from comt_cli.exchange.checkpoint import read_state
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.training.parallel import join_world
from comt_cli.training.processes import StopSignal

STEPS = {"steps": 20, "save_every": 3, "log_every": 2, "evaluate_every": 8, "gradient_norms_every": 4}
MOMENTS = [
    ("after a line of gradients.jsonl", 1),
    ("half a line of gradients.jsonl", 2),
    ("after a checkpoint is renamed", 2),
    ("before the final checkpoint is renamed", 1),
]


def test_killed_at_every_kind_of_moment(nursery, tmp_path):
    spec = image_spec(method="comt-sliding-window", **STEPS)
    expected = train(spec, tmp_path / "undisturbed")
    directory = nursery.kill_at_each(MOMENTS, spec, tmp_path / "killed")
    assert nursery.run(spec, tmp_path / "killed") == 0
    assert_same_run(directory, expected)
    assert [line["step"] for line in directory.gradients()] == [1, 4, 8, 12, 16, 20]


@pytest.mark.parametrize(
    "options",
    [
        {"method": "comt-pixel", "nesterov": True, "weight_decay": 5e-4, "schedule": "cosine"},
        {"precision": "bf16-mixed", "micro_batch_size": 4, "gradient_clipping": 0.2},
        {"precision": "bf16-pure", "schedule": "step", "milestones": (4,), "model": {"size": "preact-resnet110"}},
    ],
    ids=str,
)
def test_every_kind_resumes(tmp_path, options):
    spec = image_spec(**{"steps": 8, "log_every": 1, "save_every": 3, **options})
    assert_resumes(spec, tmp_path, 6)  # the start, then step 5


# ---- two processes


def share(rank: int, spec: RunSpec, runs: Path, is_stopped: bool) -> None:
    """Train with the other process, or until the main one is told to stop after step 4."""
    stop = StopSignal()
    stops = After(4, lambda: setattr(stop, "number", signal.SIGTERM if is_stopped and rank == 0 else None))
    with join_world("cpu") as world:
        run = training(spec, runs, world=world, listener=stops, stop=stop)
        with pytest.raises(RunInterrupted) if is_stopped else contextlib.nullcontext():
            run.run()
        if not is_stopped:
            state = read_state(run.directory.checkpoint_file)["model"]
            # The main process's statistics are what is saved, and what all have evaluated with.
            buffers = dict(run.model.named_buffers())
            assert_same_bits(buffers, {name: state[name] for name in buffers}, Reason.SAVED, "the statistics")


@pytest.mark.slow
def test_two_processes_train_as_two_micro_batches_do_and_go_on_to_the_bit(nursery, tmp_path):
    """Each normalises its half of the batch by itself, as a process alone does with halves one after the other. Only
    the running statistics differ: the main process has seen its own halves."""
    options = {"steps": 12, "log_every": 1, "evaluate_every": 5, "save_every": 100, "gradient_norms_every": 3}
    spec = image_spec(method="comt-pixel", **options)
    alone = train(image_spec(method="comt-pixel", **options, micro_batch_size=4), tmp_path / "alone")
    run_together(nursery, 2, share, spec, tmp_path / "two", False)
    together = RunDirectory.of(tmp_path / "two", spec)
    for first, second in zip(alone.metrics(), together.metrics(), strict=True):
        assert first.keys() == second.keys()
        if "loss" in first:
            assert second["loss"] == pytest.approx(first["loss"], rel=1e-4)
            assert second["images"] == first["images"]
    for first, second in zip(alone.gradients(), together.gradients(), strict=True):
        assert second["norms"] == pytest.approx(first["norms"], rel=1e-3)
    assert together.result()["evaluation"] == {"samples": 20, "images": 20, "batch_size": 4, "processes": 2}
    weights = [read_state(directory.checkpoint_file)["model"] for directory in (alone, together)]
    for name, tensor in weights[0].items():
        is_close = torch.allclose(weights[1][name], tensor, rtol=1e-3, atol=1e-4)
        assert is_close or "running" in name, name

    run_together(nursery, 2, share, spec, tmp_path / "stopped", True)
    stopped = RunDirectory.of(tmp_path / "stopped", spec)
    assert 4 <= read_state(stopped.checkpoint_file)["progress"]["step"] < 12
    run_together(nursery, 2, share, spec, tmp_path / "stopped", False)
    assert_same_run(stopped, together)
    assert json.loads(stopped.environment_file.read_text())[-1]["differs"] == []
    assert untimed(stopped)["processes"] == 2
