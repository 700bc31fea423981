"""What a person sees: plain lines into a file, bars on a terminal."""

from __future__ import annotations

import io
import re
import sys

import pytest
from rich.console import Console
from tiny_runs import tiny_spec, train

from comt_cli.training import progress
from comt_cli.training.progress import Listener, PlainListener, RichListener, StepReport, make_listener, outcome

DONE = {"state": "done", "perplexity": 23.456, "train_seconds": 61.4, "tokens_per_second": 12345.6}
IMAGES = {"state": "done", "accuracy": 91.256, "train_seconds": 61.4, "images_per_second": 3200.4}
DIVERGED = {"state": "diverged", "diverged_at": 7}
REPORT = StepReport(step=10, loss=3.21987, per_second=12345.6, mfu=None, memory_bytes=None)


def test_a_step_in_words():
    assert str(REPORT) == "loss 3.220, 12,346 tok/s"
    images = StepReport(step=10, loss=2.302, per_second=3200.4, mfu=None, memory_bytes=None, unit="images")
    assert str(images) == "loss 2.302, 3,200 img/s"
    full = StepReport(step=10, loss=3.2, per_second=1e6, mfu=0.4217, memory_bytes=3 * 2**29)
    assert str(full) == "loss 3.200, 1,000,000 tok/s, MFU 42.2%, 1.5 GiB"


def test_an_outcome_in_words():
    assert outcome(DONE) == "perplexity 23.46, 61 s, 12,346 tok/s"
    assert outcome({**DONE, "perplexity": None}) == "perplexity beyond range, 61 s, 12,346 tok/s"
    assert outcome(IMAGES) == "accuracy 91.26 %, 61 s, 3,200 img/s"
    assert outcome(DIVERGED) == "diverged at step 7"


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_plain_lines(tiny_corpus, capsys, clock):
    spec = tiny_spec(tiny_corpus, steps=100)
    listener = PlainListener()
    listener.preparing("tokenising documents", 0, 500)
    listener.preparing("tokenising documents", 250, 500)  # too soon after the last line
    listener.preparing("counting", 3, None)
    listener.table_started(3, 1)
    listener.run_started(spec, 0)
    listener.step_done(REPORT)
    clock[0] += 11
    listener.step_done(StepReport(20, 3.0, 100.0, None, None))
    listener.run_finished(spec, DONE)
    listener.run_started(spec, 40)
    clock[0] += 30
    listener.step_done(StepReport(50, 3.0, 100.0, None, None))
    listener.run_finished(spec, DIVERGED)
    listener.close()
    said = capsys.readouterr()
    assert said.out == "", "standard output is for tables"
    assert said.err.splitlines() == [
        "tokenising documents: 0 of 500",
        "counting: 3",
        "1 of 3 runs are finished already",
        "[2/3] a-row, tiny, seed 1: 100 steps",
        "  step 20/100, loss 3.000, 100 tok/s, 44 s left",  # 20 steps took 11 s
        "  perplexity 23.46, 61 s, 12,346 tok/s",
        "[3/3] a-row, tiny, seed 1: 100 steps, going on after step 40",
        "  step 50/100, loss 3.000, 100 tok/s, 150 s left",  # 10 steps took 30 s
        "  diverged at step 7",
    ]


def test_bars(tiny_corpus, tmp_path, monkeypatch):
    """A real run, drawn on a terminal that is a string."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=160, legacy_windows=False)
    monkeypatch.setattr(progress, "Console", lambda **options: console)

    class Shown(RichListener):
        """Draws at every step, not when its clock says so: this run may be quicker."""

        def step_done(self, report: StepReport) -> None:
            super().step_done(report)
            self._progress.refresh()

    listener = Shown()
    listener.preparing("hashing files", 3, None)
    listener.table_started(1, 0)
    train(tiny_spec(tiny_corpus, steps=6, log_every=1, evaluate_every=2), tmp_path, listener=listener)
    listener._progress.refresh()
    listener.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "a-row, tiny, seed 1: perplexity" in text
    assert "table" in text
    assert "1/1" in text
    assert re.search(r"loss \d\.\d{3}, [\d,]+ tok/s|evaluating", text)
    assert all(
        not task.started or task.total is None or task.completed <= task.total for task in listener._progress.tasks
    )


def test_the_run_bar_goes_on_where_the_run_does(tiny_corpus, monkeypatch):
    monkeypatch.setattr(progress, "Console", lambda **options: Console(file=io.StringIO(), force_terminal=True))
    listener = RichListener()
    listener.run_started(tiny_spec(tiny_corpus, steps=100), 40)
    bar = listener._progress.tasks[1]
    assert (bar.completed, bar.total, bar.visible) == (40, 100, True)
    listener.step_done(REPORT)
    assert bar.completed == 10
    assert bar.fields["note"] == str(REPORT)
    listener.evaluating()
    assert bar.fields["note"] == "evaluating"
    listener.close()


@pytest.mark.parametrize(
    ("main", "terminal", "kind"), [(True, True, RichListener), (True, False, PlainListener), (False, True, Listener)]
)
def test_who_gets_what(monkeypatch, main, terminal, kind):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(progress, "Console", lambda **options: Console(file=io.StringIO(), force_terminal=True))
    listener = make_listener(main)
    listener.close()
    assert type(listener) is kind


def test_the_silent_one_says_nothing(tiny_corpus, tmp_path, capsys):
    train(tiny_spec(tiny_corpus, steps=4), tmp_path)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
