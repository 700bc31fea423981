"""What a person sees while runs train: lines in a file, and a terminal of 60, 80 and 120 columns."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from tiny_runs import tiny_spec

from comt_cli.campaign.display import Display
from comt_cli.campaign.live_display import LiveDisplay
from comt_cli.campaign.opening import Workload
from comt_cli.campaign.outcomes import Ending, RunOutcome, Summary, TrainingFailed
from comt_cli.campaign.plain_display import PlainDisplay, make_display
from comt_cli.campaign.screen import Line
from comt_cli.campaign.worker import Reporter
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
ROWS = ["post-ln", "pre-ln", "layernorm-scaling", "pre-ln+transponder"]


def report(step: int, loss: float = 3.21987) -> StepReport:
    return StepReport(
        step=step, loss=loss, per_second=12345.6, mfu=0.4217, memory_bytes=3 * 2**29, unit=Unit("tokens", "tok")
    )


@pytest.fixture
def shared(tiny_corpus):
    """Four rows with two seeds each, of a column with a long name."""
    return [
        SharedRun((tiny_spec(tiny_corpus, seed=seed, steps=240, save_every=20).model_copy(
            update={"row": row, "column": "python-docs/tiny", "table": "table3", "method": {"name": row}}
        ),))
        for row in ROWS
        for seed in (1, 2)
    ]  # fmt: skip


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def start(shared, done: int = 0, workers=("cpu 1", "cpu 2")) -> Workload:
    every = [each.spec for each in shared]
    before = [(spec, DONE) for spec in every[:done]]
    return Workload(every, every[done:], before, Path("runs"), workers, DEVICE)


def ended(run: SharedRun, result=DONE) -> RunOutcome:
    return RunOutcome.with_result(run, Path("runs"), result, already=False)


def fail(run: SharedRun, reason: str) -> RunOutcome:
    return RunOutcome.of(run, Path("runs"), Ending.failed, reason)


def left(run: SharedRun, reason: str) -> RunOutcome:
    return RunOutcome.of(run, Path("runs"), Ending.left, reason)


# ---- lines


def test_plain_lines(shared, capsys, clock):
    first, second = shared[1:3]
    display = PlainDisplay()
    display.preparing("tokenising documents", 0, 500)
    clock[0] += 1
    display.preparing("tokenising documents", 250, 500)  # too soon after the last line
    clock[0] += 31
    display.preparing("tokenising documents", 400, 500)
    clock[0] += 8
    display.preparing("tokenising documents", 500, 500)
    display.preparing("starting PyTorch", 0, None)
    clock[0] += 2.5
    display.queue_started(start(shared, done=1))
    display.run_taken(0, first.spec)
    clock[0] += 1.5
    display.run_event(0, RunStarted(0))
    display.run_taken(1, second.spec)
    display.run_event(1, RunStarted(40))
    for step in (1, 2, 11):
        display.run_event(0, report(step))
        clock[0] += 1.5
        display.tick()
    clock[0] += 31
    display.run_event(1, Evaluating(0, 40))
    display.run_event(1, Evaluating(3, 40))
    display.tick()
    display.tick()
    display.run_ended(0, ended(first))
    display.run_event(1, Note("another device"))
    display.run_ended(1, fail(second, "RuntimeError: a defect"))
    clock[0] += 61
    display.tick()  # nobody is at work
    display.close()
    said = capsys.readouterr()
    assert said.out == "", "standard output is for tables"
    assert said.err.splitlines() == [
        "tokenising documents ...",
        "tokenising documents: 400 of 500, 32 s",
        "tokenising documents: 500 done in 40 s",
        "starting PyTorch ...",
        "starting PyTorch: done in 2.5 s",
        "runs:  7 to train of 240 steps, 1 of 8 are finished (comt/table3: 4 rows, 1 column, 2 seeds)",
        "where: 2 at a time on AMD EPYC, 1 thread; files in runs/comt/table3",
        "time:  about 4 min, by 1 run that is finished",
        "stop:  Ctrl-C saves what runs; the same command resumes from there",
        "cpu 1: post-ln, python-docs/tiny, seed 2: starting ...",
        "cpu 1: post-ln, python-docs/tiny, seed 2: 240 steps, started in 1.5 s",
        "cpu 2: pre-ln, python-docs/tiny, seed 1: starting ...",
        "cpu 2: pre-ln, python-docs/tiny, seed 1: 240 steps, resumed after step 40, started in 0.0 s",
        "[1/8] cpu 1: post-ln, python-docs/tiny, seed 2: step 11 of 240, "
        "loss 3.220, 12,346 tok/s, MFU 42.2%, 1.5 GiB, 36 s left; "
        "cpu 2: pre-ln, python-docs/tiny, seed 1: step 40 of 240, evaluating 3 of 40 batches, 60 s left; "
        "all runs: about 4 min left",
        "[2/8] post-ln, python-docs/tiny, seed 2: validation perplexity 23.46, 61 s, 12,346 tok/s",
        "cpu 2: note: another device",
        "[2/8] pre-ln, python-docs/tiny, seed 1: failed: RuntimeError: a defect",
    ]
    assert not [line for line in said.err.splitlines() if line != line.rstrip()]
    assert "\x1b" not in said.err


def test_one_run_in_this_process(shared, capsys, clock):
    """No names of workers, and the run's time left."""
    display = PlainDisplay()
    display.queue_started(start(shared[:1], workers=["cpu"]))
    display.run_taken(0, shared[0].spec)
    display.run_event(0, RunStarted(0))
    display.run_event(0, report(1))
    clock[0] += 40
    display.run_event(0, report(41))
    display.tick()
    display.run_ended(0, ended(shared[0]))
    assert capsys.readouterr().err.splitlines() == [
        "runs:  1 to train of 240 steps (comt/table3: 1 row, 1 column, 1 seed)",
        "where: on AMD EPYC, 1 thread; files in runs/comt/table3",
        "time:  not known before the first steps",
        "stop:  Ctrl-C saves what runs; the same command resumes from there",
        "post-ln, python-docs/tiny, seed 1: 240 steps, started in 0.0 s",
        "[0/1] post-ln, python-docs/tiny, seed 1: step 41 of 240, loss 3.220, 12,346 tok/s, MFU 42.2%, 1.5 GiB, "
        "3 min left; all runs: about 3 min left",
        "[1/1] post-ln, python-docs/tiny, seed 1: validation perplexity 23.46, 61 s, 12,346 tok/s",
    ]


@pytest.mark.parametrize(
    ("odd", "pace"),
    [
        ({}, 61.4),
        ({"train_seconds": None}, None),
        ({"train_seconds": "61"}, None),
        ({"train_seconds": 0}, None),
        ({"train_seconds": float("inf")}, None),
        ({"processes": 2}, None),
        ({"device": "NVIDIA H200"}, None),
        ({"state": "diverged"}, None),
    ],
)
def test_finished_runs_tell_the_time_that_were_trained_as_these_will_be(shared, capsys, odd, pace):
    specs = [each.spec for each in shared]
    before = [(specs[0], DONE | odd), (specs[1], {"state": "done"})]
    display = PlainDisplay()
    display.queue_started(Workload(specs, specs[2:4], before, Path("runs"), ["cpu"], DEVICE))
    assert display.all_left() == (None if pace is None else pytest.approx(2 * pace))
    said = capsys.readouterr().err
    assert ("by 1 run that is finished" if pace else "not known before the first steps") in said


def test_processes_that_share_every_run(shared, capsys):
    """A result names the device of one of them."""
    specs = [each.spec for each in shared]
    before = [(specs[0], DONE | {"device": "NVIDIA H200", "processes": 2})]
    display = PlainDisplay()
    display.queue_started(Workload(specs, specs[1:], before, Path("runs"), ["cuda:0"], "NVIDIA H200", 2))
    said = capsys.readouterr().err
    assert "where: on 2 x NVIDIA H200; files in" in said
    assert "by 1 run that is finished" in said


def test_the_table_is_named_where_there_are_several(shared, capsys):
    spec = shared[0].spec
    other = SharedRun((spec.model_copy(update={"table": "table5", "seed": 9}),))
    display = PlainDisplay()
    display.queue_started(start([*shared, other]))
    display.run_taken(0, spec)
    said = capsys.readouterr().err
    assert "files in runs/comt" in said
    assert "(2 tables)" in said
    assert "cpu 1: comt/table3 post-ln, python-docs/tiny, seed 1: starting ..." in said


# ---- a terminal


def terminal(width: int) -> tuple[LiveDisplay, io.StringIO]:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=width, legacy_windows=False, color_system=None)
    return LiveDisplay(console), screen


def seen(display: LiveDisplay, width: int) -> list[str]:
    """The lines that are redrawn."""
    return [as_text(line) for line in display.lines(width)]


def as_text(line: Line) -> str:
    """The line with its bar drawn in characters."""
    return "".join(part if isinstance(part, str) else "━" * part.full + "─" * (part.cells - part.full) for part in line)


def printed(screen: io.StringIO) -> list[str]:
    """What stands on the terminal now: it erases lines and moves up, as it is told, before others are written."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", screen.getvalue()):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part == "\x1b[1A":
            row -= 1
        elif part[0] not in "\x1b\r":
            lines[row] += part
    return [line.rstrip() for line in lines if line.strip()]


def train_for_a_while(display: LiveDisplay, shared, clock) -> None:
    display.queue_started(start(shared, done=2))
    display.run_taken(0, shared[2].spec)
    display.run_taken(1, shared[5].spec)
    display.run_event(1, RunStarted(0))
    for step in (1, 50):
        clock[0] += 20
        display.run_event(1, report(step, 6.196))
    display.run_event(0, RunStarted(100))
    for step in (101, 120):
        clock[0] += 5
        display.run_event(0, report(step, 6.021))


def whole_words(lines: list[str], texts: str) -> None:
    """Every word on the screen is a word of what was to be said; nothing is cut, and nothing hidden by an ellipsis."""
    known = set(texts.split())
    for line in lines:
        assert "…" not in line
        for word in line.split():
            assert word in known or not re.search(r"[a-z]{3}", word), (word, line)


ALL_WORDS = """all runs of left so far min min, loss tok/s MFU GiB starting, eval post-ln pre-ln layernorm-scaling
pre-ln+transponder post-ln, pre-ln, layernorm-scaling, pre-ln+transponder, python-docs/tiny, seed cpu stopping: saving
after the step at hand ... (a second signal ends at once, and loses up to steps each) to train steps, are finished
(comt/table3: rows, column, seeds) where time a on AMD EPYC, thread; files in runs/comt/table3 about by that stop
Ctrl-C saves what runs; same command resumes from there is perplexity 23.46, s, 12,346 failed: RuntimeError: a defect
run each perplexity tokenising documents: h not known before first"""


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_while_runs_train(shared, clock, width):
    display, screen = terminal(width)
    train_for_a_while(display, shared, clock)
    lines = seen(display, width)
    assert all(len(line) <= width for line in lines), lines
    whole_words([*lines, *printed(screen)], ALL_WORDS)
    text = "\n".join(lines)
    assert "2 of 8 runs" in text
    assert re.search(r"(?m)^all .*\d+ (s|min) left", text), "time left for all"
    (first,) = [line for line in lines if line.startswith("cpu 1")]
    (second,) = [line for line in lines if line.startswith("cpu 2")]
    assert "pre-ln" in first
    assert "layernorm-scaling" in second
    for line, counts in ((first, "120/240"), (second, "50/240")):
        assert counts in line, "steps are not left out"
        assert re.search(r"\d+ (s|min) left", line), "time left for a run"
        assert "━" in line
    assert ("loss 6.196" in text) == (width > 60), "the loss goes before steps and times do"
    assert ("tok/s" in text) == (width > 80)
    assert ("python-docs/tiny" in text) == (width >= 100), "a short name where there is little room"
    assert all(f"seed {seed}" in line for seed, line in ((1, first), (2, second)))
    display.close()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_what_is_said_before_the_start(shared, clock, width):
    display, screen = terminal(width)
    display.queue_started(start(shared, done=2))
    display.close()
    lines = printed(screen)
    assert all(len(line) <= width for line in lines)
    whole_words(lines, ALL_WORDS)
    text = " ".join(" ".join(lines).split())
    assert "6 to train of 240 steps, 2 of 8 are finished (comt/table3: 4 rows, 1 column, 2 seeds)" in text
    assert "2 at a time on AMD EPYC, 1 thread; files in runs/comt/table3" in text
    assert "about 3 min, by 2 runs" in text
    assert "Ctrl-C saves what runs; the same command resumes from there" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_starting_and_evaluating_show_that_they_live(shared, clock, width):
    display, _ = terminal(width)
    display.preparing("tokenising documents", 300, 7424)
    clock[0] += 4
    before = seen(display, width)
    assert before == ["| tokenising documents: 300 of 7,424, 0:04"]
    display.queue_started(start(shared))
    display.run_taken(0, shared[0].spec)
    display.run_taken(1, shared[4].spec)
    display.run_event(1, RunStarted(0))
    display.run_event(1, report(240))
    display.run_event(1, Evaluating(0, 40))
    display.run_event(1, Evaluating(12, 40))
    clock[0] += 7.5
    lines = seen(display, width)
    assert all(len(line) <= width for line in lines), lines
    (starting,) = [line for line in lines if line.startswith("cpu 1")]
    (evaluating,) = [line for line in lines if line.startswith("cpu 2")]
    assert starting.endswith("starting, 0:07")
    assert "eval 12/40" in evaluating
    clock[0] += 0.5
    assert seen(display, width) != lines, "it stands still"
    display.close()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_end_leaves_no_bars(shared, clock, width):
    display, screen = terminal(width)
    train_for_a_while(display, shared, clock)
    display.run_ended(1, ended(shared[5]))
    display.run_ended(0, fail(shared[2], "RuntimeError: [red] is no colour here"))
    lines = seen(display, width)
    assert [line.split()[0] for line in lines] == ["all"], "workers without a run have no line"
    assert "3 of 8 runs" in lines[0]
    display.close()
    text = " ".join(" ".join(printed(screen)).split())
    assert "[3/8] layernorm-scaling, python-docs/tiny, seed 2: validation perplexity 23.46" in text
    assert "failed: RuntimeError: [red] is no colour here" in text
    assert "━" not in text
    assert "─" not in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_signal_is_answered_on_the_screen(shared, clock, width):
    display, _ = terminal(width)
    display.queue_started(start(shared))
    display.run_taken(0, shared[0].spec)
    display.stopping(False)
    assert "no run has begun, there is nothing to save" in " ".join(seen(display, width))
    train_for_a_while(display, shared, clock)
    display.stopping(False)
    lines = seen(display, width)
    assert all(len(line) <= width for line in lines), lines
    text = " ".join(lines).replace("  ", " ")
    assert "stopping: saving 2 runs after the step at hand ..." in text
    assert "loses up to 20 steps of each" in text
    display.stopping(True)
    assert "ending at once: up to 20 steps of each run are lost" in " ".join(seen(display, width))
    display.close()


def test_a_line_of_a_run_that_was_stopped_has_no_path_to_break(shared, clock):
    display, screen = terminal(60)
    train_for_a_while(display, shared, clock)
    display.run_ended(1, left(shared[5], "stopped after step 50 of 240; everything is saved"))
    display.close()
    assert "layernorm-scaling, python-docs/tiny, seed 2: stopped after step 50 of 240; everything is saved" in " ".join(
        " ".join(printed(screen)).split()
    )


@pytest.mark.parametrize("width", [20, 30, 40, 45])
def test_a_terminal_so_narrow_that_a_run_takes_two_lines(shared, clock, width):
    display, _ = terminal(width)
    train_for_a_while(display, shared, clock)
    text = "\n".join(seen(display, width))
    whole_words(text.splitlines(), ALL_WORDS)
    for part in ("120/240", "50/240", "layernorm-scaling"):
        assert part in text
    display.close()


def test_many_tables_have_long_names(shared, clock):
    spec = shared[3].spec
    other = SharedRun((spec.model_copy(update={"table": "tableA7-window-ratio", "column": "glyphs10/resnet18"}),))
    for width in (60, 80, 120):
        display, _ = terminal(width)
        display.queue_started(start([*shared, other]))
        display.run_taken(0, other.spec)
        display.run_event(0, RunStarted(0))
        display.run_event(0, report(7))
        lines = seen(display, width)
        assert all(len(line) <= width for line in lines), lines
        text = " ".join(" ".join(lines).split())
        for part in ("comt/tableA7-window-ratio", "glyphs10/resnet18", "7/240"):
            assert part in text
        display.close()


# ---- which, and the end


@pytest.mark.parametrize(
    ("main", "terminal", "term", "kind"),
    [
        (True, True, "xterm", LiveDisplay),
        (True, True, "dumb", PlainDisplay),
        (True, False, "xterm", PlainDisplay),
        (False, True, "xterm", Display),
    ],
)
def test_who_gets_what(monkeypatch, main, terminal, term, kind):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    display = make_display(main)
    display.close()
    assert type(display) is kind


def test_the_summary(shared, tmp_path):
    outcomes = (
        RunOutcome.with_result(shared[0], tmp_path, DONE, already=True),
        RunOutcome.of(shared[2], tmp_path, Ending.elsewhere, "by process 7 on there"),
        RunOutcome.of(shared[4], tmp_path, Ending.left, "stopped after step 5 of 240; everything is saved"),
    )
    assert Summary(outcomes).lines() == [
        "3 runs: 1 done (1 before), 1 trained elsewhere, 1 left to do",
        "  trained elsewhere: comt/table3 pre-ln, python-docs/tiny, seed 1: by process 7 on there",
    ], "what was stopped was told when it was"
    Summary(outcomes[:2]).check()  # nothing failed, and what is open has its trainer
    with pytest.raises(TrainingFailed, match="1 of 3 runs are left to do"):
        Summary(outcomes).check()


def test_a_worker_reports_a_few_steps_a_second_and_all_other_events(clock):
    sent = []
    reporter = Reporter(SimpleNamespace(send=sent.append), 6)
    events = [RunStarted(0), *(report(step) for step in range(1, 7)), *(Evaluating(done, 3) for done in range(4))]
    for event in [*events, Note("a note")]:
        reporter(event)
        clock[0] += 0.08
    assert sent == [
        RunStarted(0), report(1), report(4), report(6), Evaluating(0, 3), Evaluating(1, 3), Note("a note"),
    ]  # fmt: skip
