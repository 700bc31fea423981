"""What a person sees while runs train: lines in a file, bars on a terminal."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tiny_runs import tiny_spec

from comt_cli.campaign.display import Display, ProgressDisplay, make_display
from comt_cli.campaign.outcomes import Ending, RunOutcome
from comt_cli.campaign.queue import RunQueue
from comt_cli.runs.shared import SharedRun
from comt_cli.tasks.base import Unit
from comt_cli.training.events import Evaluating, Note, RunStarted, StepReport

DEVICE = "AMD EPYC, 1 thread"
DONE = {
    "state": "done",
    "perplexity": 23.456,
    "train_seconds": 61.4,
    "tokens_per_second": 12345.6,
    "device": DEVICE,
    "processes": 1,
}


def report(step: int) -> StepReport:
    return StepReport(step, loss=3.21987, per_second=12345.6, mfu=None, memory_bytes=None, unit=Unit("tokens", "tok"))


@pytest.fixture
def shared(tiny_corpus):
    """Two rows with two seeds each."""
    return [
        SharedRun(
            (
                tiny_spec(tiny_corpus, seed=seed, steps=240, save_every=20).model_copy(
                    update={"row": row, "method": {"name": row}}
                ),
            )
        )
        for row in ("post-ln", "pre-ln")
        for seed in (1, 2)
    ]


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def queue_of(shared, runs: Path, *results) -> RunQueue:
    """A queue of these runs, the first of which have results."""
    for each, result in zip(shared, results, strict=False):
        directory = each.directory(runs)
        directory.create(each.spec)
        directory.result_file.write_text(json.dumps(result), encoding="utf-8")
    return RunQueue([each.spec for each in shared], runs)


def train_for_a_while(display: ProgressDisplay, shared, clock, runs: Path) -> None:
    """Worker a evaluates, worker b is starting."""
    display.preparing("tokenising documents", 0, 500)
    clock[0] += 31
    display.preparing("tokenising documents", 400, 500)
    display.queue_started(queue_of(shared, runs, DONE), ["a", "b"], DEVICE)
    display.run_taken(0, shared[1].spec)
    display.run_event(0, RunStarted(40))
    for step in (41, 44):
        display.run_event(0, report(step))
        clock[0] += 3
    display.run_event(0, Evaluating(3, 40))
    display.run_taken(1, shared[2].spec)
    clock[0] += 31
    display.tick()


def test_a_file_has_a_line_when_something_starts_or_ends_and_every_half_minute(shared, capsys, clock, tmp_path):
    display = ProgressDisplay()
    train_for_a_while(display, shared, clock, tmp_path)
    display.tick()  # too soon after the last line
    display.run_ended(0, RunOutcome.with_result(shared[1], Path("runs"), DONE, already=False))
    display.run_event(1, Note("another device"))
    display.run_ended(1, RunOutcome.of(shared[2], Path("runs"), Ending.failed, "RuntimeError: a defect"))
    display.close()
    said = capsys.readouterr()
    assert said.out == "", "standard output is for tables"
    assert "\x1b" not in said.err
    lines = said.err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        *("tokenising documents ...", "tokenising documents"),
        *("runs", "where", "stop", "a", "a", "b", "[1/4] a", "[2/4] a", "b"),
        "[2/4] b",
    ]
    for part in ("step 44 of 240", "evaluating 3 of 40 batches", "loss 3.220", "b: pre-ln, tiny, seed 1: starting"):
        assert part in lines[8]
    assert lines[8].count(" left") == 2, "of the run, and of all runs"


def test_a_signal_is_answered_by_what_it_costs(shared, clock, capfd, tmp_path):
    assert type(make_display(False)) is Display, "one process of several speaks"
    display = make_display()  # of a file
    assert isinstance(display, ProgressDisplay)
    display.stopping(False)
    train_for_a_while(display, shared, clock, tmp_path)
    for again in (False, True):
        display.stopping(again)
    said = capfd.readouterr().err
    assert "loses up to 20 steps of each" in said
    assert "ending at once: up to 20 steps of each run are lost" in said
