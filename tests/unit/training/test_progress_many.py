"""What a person sees while several workers train."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.console import Console
from tiny_runs import tiny_spec

from comt_cli.recipe.shared_runs import SharedRun
from comt_cli.training.many import progress as progress_many
from comt_cli.training.many.outcomes import Ending, RunOutcome, Summary, TrainingFailed
from comt_cli.training.many.progress import PlainDisplay, RichDisplay, make_display
from comt_cli.training.progress import StepReport

DONE = {"state": "done", "perplexity": 23.456, "train_seconds": 61.4, "tokens_per_second": 12345.6}
REPORT = StepReport(step=10, loss=3.21987, per_second=12345.6, mfu=None, memory_bytes=None)


@pytest.fixture
def shared(tiny_corpus):
    return [SharedRun((tiny_spec(tiny_corpus, seed=seed, steps=100),)) for seed in (1, 2, 3)]


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [1000.0]
    monkeypatch.setattr(progress_many.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines(shared, tmp_path, capsys, clock):
    first, second, third = shared
    display = PlainDisplay()
    display.preparing("tokenising documents", 0, 500)
    display.preparing("tokenising documents", 250, 500)  # too soon after the last line
    display.queue_started(4, 1, ["cpu 1", "cpu 2"], with_table=False)
    display.run_started(0, first.spec, 0)
    display.run_started(1, second.spec, 40)
    for _ in range(50):
        display.step_done(0, REPORT)
        display.evaluating(0)
        display.tick()
    clock[0] += 61
    display.tick()
    display.tick()
    display.run_ended(0, RunOutcome.with_result(first, tmp_path, DONE, already=False))
    display.warn(1, "another device")
    display.run_ended(1, RunOutcome.of(second, tmp_path, Ending.failed, "RuntimeError: a defect"))
    display.run_ended(0, RunOutcome.with_result(third, tmp_path, DONE, already=True))
    clock[0] += 61
    display.tick()  # nobody is at work
    display.close()
    said = capsys.readouterr()
    assert said.out == "", "standard output is for tables"
    assert said.err.splitlines() == [
        "tokenising documents: 0 of 500",
        "1 of 4 runs are finished already",
        "3 to do, 2 at a time: cpu 1, cpu 2",
        "cpu 1: a-row, tiny, seed 1: 100 steps",
        "cpu 2: a-row, tiny, seed 2: 100 steps, going on after step 40",
        "[1/4] cpu 1: a-row, tiny, seed 1: step 10/100, loss 3.220, 12,346 tok/s; "
        "cpu 2: a-row, tiny, seed 2: step 40/100",
        "[2/4] a-row, tiny, seed 1: perplexity 23.46, 61 s, 12,346 tok/s",
        "cpu 2: note: another device",
        "[2/4] a-row, tiny, seed 2: failed: RuntimeError: a defect",
        "[3/4] a-row, tiny, seed 3: perplexity 23.46, 61 s, 12,346 tok/s, finished by another process",
    ]


def test_the_table_is_named_where_there_are_several(shared, capsys):
    display = PlainDisplay()
    display.queue_started(4, 0, ["cpu 1"], with_table=True)
    display.run_started(0, shared[0].spec, 0)
    assert "cpu 1: comt/tiny a-row, tiny, seed 1: 100 steps" in capsys.readouterr().err


def test_bars(shared, tmp_path, monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=160, legacy_windows=False)
    monkeypatch.setattr(progress_many, "Console", lambda **options: console)
    display = RichDisplay()
    display.preparing("hashing files", 3, None)
    display.queue_started(3, 1, ["cuda:0", "cuda:1"], with_table=False)
    queue, first, second = display._progress.tasks[1:]
    assert (queue.completed, queue.total, queue.visible) == (1, 3, True)
    display.run_started(1, shared[0].spec, 40)
    assert (second.completed, second.total) == (40, 100)
    display.step_done(1, REPORT)
    display.run_started(0, shared[1].spec, 0)
    display.evaluating(0)
    display._progress.refresh()
    assert (second.completed, second.fields["note"]) == (10, str(REPORT))
    assert first.fields["note"] == "evaluating"
    display.run_ended(1, RunOutcome.with_result(shared[0], tmp_path, DONE, already=False))
    display.run_ended(0, RunOutcome.of(shared[1], tmp_path, Ending.failed, "[red] is no colour here"))
    display.warn(0, "a note")
    assert (queue.completed, second.description) == (2, "cuda:1")
    display.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "cuda:1: a-row, tiny, seed 1" in text
    assert "a-row, tiny, seed 1: perplexity 23.46" in text
    assert "failed: [red] is no colour here" in text
    assert "cuda:0: note: a note" in text


@pytest.mark.parametrize(("terminal", "kind"), [(True, RichDisplay), (False, PlainDisplay)])
def test_who_gets_what(monkeypatch, terminal, kind):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(progress_many, "Console", lambda **options: Console(file=io.StringIO(), force_terminal=True))
    display = make_display()
    display.close()
    assert type(display) is kind


def test_the_summary(shared, tmp_path):
    outcomes = (
        RunOutcome.with_result(shared[0], tmp_path, DONE, already=True),
        RunOutcome.of(shared[1], tmp_path, Ending.elsewhere, "by process 7 on there"),
        RunOutcome.of(shared[2], tmp_path, Ending.left),
    )
    assert Summary(outcomes).lines() == [
        "3 runs: 1 done (1 before), 1 trained elsewhere, 1 left to do",
        "  trained elsewhere: comt/tiny a-row, tiny, seed 2: by process 7 on there",
    ]
    Summary(outcomes[:2]).check()  # nothing failed, and what is open has its trainer
    with pytest.raises(TrainingFailed, match="1 of 3 runs are left to do"):
        Summary(outcomes).check()
