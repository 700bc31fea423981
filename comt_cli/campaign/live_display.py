"""The display of a terminal: a line for all runs and one for each worker, redrawn; above them, what has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from comt_cli.campaign.display import Stage, StatefulDisplay, WorkerState
from comt_cli.campaign.opening import Workload, opening
from comt_cli.campaign.outcomes import RunOutcome
from comt_cli.campaign.screen import Bar, Line, Row, lay_out
from comt_cli.runs.plan import RunSpec, point_in_words
from comt_cli.training.events import Event, Note
from comt_cli.words import duration, wrap

DRAWS_PER_SECOND = 2
"""Enough to see that it works; drawing takes processor time from training."""
SPINNER = "|/-\\"
BAR, REST = ("━", "─")
ASCII_BAR, ASCII_REST = ("#", ".")


class LiveDisplay(StatefulDisplay):
    """Lines at the bottom of the terminal that go away when all is done."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console(stderr=True)
        self._short = short_names([])
        self._live = Live(
            self, console=self._console, refresh_per_second=DRAWS_PER_SECOND, transient=True, redirect_stdout=False
        )
        self._live.start()

    def queue_started(self, workload: Workload) -> None:
        super().queue_started(workload)
        self._short = short_names(workload.every)
        if workload.waiting:
            texts = [(f"{subject:5}  {text}", " " * 7) for subject, text in opening(workload, self.all_left())]
            self._print(*texts)

    def run_ended(self, worker: int, ended: RunOutcome) -> None:
        super().run_ended(worker, ended)
        self._print((f"{self.count} {self.name(ended.spec)}: {ended}", "  "))

    def show_waiting(self, text: str) -> None:
        self._print((f"{text} ...", "  "))

    def run_event(self, worker: int, event: Event) -> None:
        super().run_event(worker, event)
        if isinstance(event, Note):
            self._print((f"{self.prefix(worker)}note: {event.text}", "  "))

    def close(self) -> None:
        self._live.stop()

    def _print(self, *paragraphs: tuple[str, str]) -> None:
        """Print texts, each with the indentation of its lines after the first, above what is redrawn."""
        lines = [line for text, indent in paragraphs for line in wrap(text, self._console.width, indent)]
        self._console.print(Text("\n".join(lines)), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bar = (ASCII_BAR, ASCII_REST) if options.ascii_only else (BAR, REST)
        yield from (_drawn(line, *bar) for line in self.lines(options.max_width))

    def lines(self, width: int) -> Iterator[Line]:
        """The redrawn lines, for a terminal of this width."""
        if self.stage:
            yield from ([line] for line in wrap(self._stage_line(), width, "  "))
        if self.workload is not None and (self.workload.waiting or not self.stage):
            if len(self.workload.every) > 1:
                yield from lay_out([self._all_runs()], width)
            rows = [self._row(number, state) for number, state in enumerate(self.workers) if state.spec]
            yield from lay_out(rows, width)
        if self.stop_text is not None:
            yield from ([line] for line in wrap(self.stop_text, width, "  "))

    def _stage_line(self) -> str:
        done, total = self.counted
        count = f": {done:,} of {total:,}" if total else f": {done:,}" if done else ""
        return f"{self._spinner()} {self.stage}{count}, {_clock(time.monotonic() - self.stage_began)}"

    def _all_runs(self) -> Row:
        assert self.workload is not None
        total, left = len(self.workload.every), self.all_left()
        facts = [f"{self.done} of {total} runs"]
        if left is not None:
            facts.append(f"{duration(left)} left")
        details = (f"{_clock(time.monotonic() - self.began)} so far",)
        return Row("all", (), self._share(), tuple(facts), details)

    def _share(self) -> float:
        """The part of all runs that is done, those that are running in proportion to their steps."""
        assert self.workload is not None
        running = sum(state.step / state.spec.settings.train.steps for state in self.workers if state.spec is not None)
        return (self.done + running) / max(1, len(self.workload.every))

    def _row(self, number: int, state: WorkerState) -> Row:
        spec = state.spec
        assert spec is not None
        label = state.name if len(self.workers) > 1 else ""
        names = (self.name(spec), self._short(spec))
        seconds = _clock(time.monotonic() - state.since)
        if state.stage is Stage.starting:
            return Row(label, names, None, (f"{self._spinner()} starting, {seconds}",))
        steps = spec.settings.train.steps
        left = self.time_left.of_run(number)
        if state.stage is Stage.evaluating:
            found = state.evaluated
            done = f"eval {found.done:,}/{found.total:,}" if found is not None else "evaluating"
            share = found.done / found.total if found is not None else 0.0
            return Row(label, names, share, (done, f"{self._spinner()} {seconds}"))
        facts = (f"{state.step:,}/{steps:,}", f"{duration(left)} left" if left is not None else self._spinner())
        return Row(label, names, state.step / steps, facts, state.report.details if state.report else ())

    def _spinner(self) -> str:
        return SPINNER[int(time.monotonic() * DRAWS_PER_SECOND) % len(SPINNER)]


def short_names(specs: Sequence[RunSpec]) -> Callable[[RunSpec], str]:
    """The shortest unambiguous names of these runs: `pre-ln` where they differ in their rows alone."""
    tables = len({(spec.paper, spec.table) for spec in specs}) > 1
    columns = len({spec.column for spec in specs}) > 1
    seeds = len({spec.seed for spec in specs}) > 1

    def name(spec: RunSpec) -> str:
        table = f"{spec.paper}/{spec.table} " if tables else ""
        column = f", {spec.column}" if columns else ""
        point = f", {point_in_words(spec.point)}" if spec.point else ""
        return f"{table}{spec.row}{column}{point}" + (f", seed {spec.seed}" if seeds else "")

    return name


def _clock(seconds: float) -> str:
    """0:07, 12:34, 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _drawn(line: Line, full: str, empty: str) -> Text:
    text = Text(no_wrap=True, overflow="ignore", end="\n")
    for part in line:
        if isinstance(part, Bar):
            text.append(full * part.full, "green")
            text.append(empty * (part.cells - part.full), "dim")
        else:
            text.append(part)
    return text
