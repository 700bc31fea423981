"""Runs that log gates and residual stream (`train.observe_every`), stopped, killed, and of several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dying import Nursery
from same_bits import Reason, assert_same_bits
from tiny_runs import assert_resumes, assert_same_run, image_spec, tiny_spec, train
from worlds import run_together, train_together

from comt_cli.data.prepare import prepare
from comt_cli.exchange.checkpoint import read_state
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.logs import is_observed
from comt_cli.runs.plan import RunSpec

STEPS = {"steps": 10, "log_every": 2, "save_every": 4, "observe_every": 3}


def observed(directory: RunDirectory) -> list[dict[str, Any]]:
    return [line for line in directory.metrics() if any(map(is_observed, line))]


def test_stopped_runs_go_on_to_the_bit(tiny_corpus: str, tmp_path: Path) -> None:
    """Stopped after steps that were observed since the last checkpoint, which are observed again."""
    directory = assert_resumes(tiny_spec(tiny_corpus, method="transponder", **STEPS), tmp_path / "tokens", 5, 4)
    assert [line["step"] for line in observed(directory)] == [1, 3, 6, 9, 10]
    assert_resumes(image_spec(method="comt-pixel", **STEPS), tmp_path / "maps", 5)


def test_a_killed_run_goes_on_to_the_bit(tiny_corpus: str, nursery: Nursery, tmp_path: Path) -> None:
    spec = tiny_spec(tiny_corpus, **STEPS)
    expected = train(spec, tmp_path / "undisturbed")
    moments = [("half a line of metrics.jsonl", 1), ("half a line of metrics.jsonl", 4)]
    directory = nursery.kill_at_each(moments, spec, tmp_path / "killed")
    assert nursery.run(spec, tmp_path / "killed") == 0
    assert_same_run(directory, expected)


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_two_processes_train_as_without(sharding: str, tiny_corpus: str, nursery: Nursery, tmp_path: Path) -> None:
    """The same bits as two that log nothing, and the observations of one process, to rounding."""
    options: dict[str, Any] = {"method": "transponder", "steps": 4, "log_every": 1, "sharding": sharding}
    plain, watched = (tiny_spec(tiny_corpus, **options, **more) for more in ({}, {"observe_every": 3}))
    prepare(plain.settings.data)  # type: ignore[arg-type]
    for name, spec in (("plain", plain), ("watched", watched)):
        run_together(nursery, 2, train_together, spec.model_dump_json(), str(tmp_path / name))
    first, second = (RunDirectory.of(tmp_path / name, plain) for name in ("plain", "watched"))
    found = observed(second)
    assert [line for line in second.metrics() if line not in found] == first.metrics()
    states = [read_state(each.checkpoint_file)["model"] for each in (first, second)]
    assert_same_bits(states[0], states[1], Reason.SAME_RUN, "the weights")
    alone = observed(train(_alone(watched), tmp_path / "alone"))
    assert [line["step"] for line in found] == [1, 3, 4]
    for mine, expected in zip(found, alone, strict=True):
        assert mine == pytest.approx(expected, rel=1e-3, abs=1e-4)


def _alone(spec: RunSpec) -> RunSpec:
    """On one process: as many rows at once as each of two has, which are the observed ones."""
    train_settings = spec.settings.train.model_copy(update={"micro_batch_size": 4})
    return spec.model_copy(update={"settings": spec.settings.model_copy(update={"train": train_settings})})
