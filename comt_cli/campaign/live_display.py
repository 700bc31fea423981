"""What a terminal shows: a line for all runs and one for each worker, redrawn; above them a line for what has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from comt_cli.campaign.opening import opening
from comt_cli.campaign.outcomes import RunOutcome, run_name
from comt_cli.campaign.progress import Stage, Start, Telling, WorkerState, in_words, names_of
from comt_cli.campaign.screen import Bar, Line, Row, lay_out
from comt_cli.words import duration, wrap

DRAWS_PER_SECOND = 2
"""Enough to see that it lives; drawing takes some of a processor that is there to train."""
TURNING = "|/-\\"
BAR, REST = ("━", "─")
ASCII_BAR, ASCII_REST = ("#", ".")


class LiveDisplay(Telling):
    """Lines at the bottom of the terminal that go away when all is done."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self._console = console or Console(stderr=True)
        self._counted: tuple[int, int | None] = (0, None)
        self._full = self._short = names_of([])
        self._live = Live(
            self, console=self._console, refresh_per_second=DRAWS_PER_SECOND, transient=True, redirect_stdout=False
        )
        self._live.start()

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        super().preparing(stage, done, total)
        self._counted = (done, total)

    def queue_started(self, start: Start) -> None:
        super().queue_started(start)
        self._short = names_of(start.every)
        several = len({(spec.paper, spec.table) for spec in start.every}) > 1
        self._full = lambda spec: run_name(spec, with_table=several)
        if start.waiting:
            said = [(f"{subject:5}  {text}", " " * 7) for subject, text in opening(start, self.all_left())]
            self._print(*said)

    def run_ended(self, worker: int, ended: RunOutcome) -> None:
        super().run_ended(worker, ended)
        total = len(self.start.every) if self.start is not None else 0
        self._print((f"[{self.done}/{total}] {self._full(ended.spec)}: {in_words(ended)}", "  "))

    def waits(self, text: str) -> None:
        self._print((f"{text} ...", "  "))

    def warn(self, worker: int, text: str) -> None:
        name = f"{self.places[worker].name}: " if len(self.places) > 1 else ""
        self._print((f"{name}note: {text}", "  "))

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
        """What is to be seen just now on a terminal of this width."""
        if self.stage:
            yield from ([line] for line in wrap(self._stage_line(), width, "  "))
        if self.start is not None and (self.start.waiting or not self.stage):
            if len(self.start.every) > 1:
                yield from lay_out([self._all_runs()], width)
            busy = [place for place in self.places if place.spec is not None]
            rows = [self._row(number, place) for number, place in enumerate(self.places) if place.spec is not None]
            yield from lay_out(rows, width) if busy else ()
        if self.stop_text is not None:
            yield from ([line] for line in wrap(self.stop_text, width, "  "))

    def _stage_line(self) -> str:
        done, total = self._counted
        count = f": {done:,} of {total:,}" if total else f": {done:,}" if done else ""
        return f"{self._turning()} {self.stage}{count}, {_clock(time.monotonic() - self.stage_began)}"

    def _all_runs(self) -> Row:
        assert self.start is not None
        total, left = len(self.start.every), self.all_left()
        facts = [f"{self.done} of {total} runs"]
        if left is not None:
            facts.append(f"{duration(left)} left")
        details = (f"{_clock(time.monotonic() - self.began)} so far",)
        return Row("all", (), self._share(), tuple(facts), details)

    def _share(self) -> float:
        """The part of all runs that is done, those that are running in proportion to their steps."""
        assert self.start is not None
        running = sum(place.step / place.spec.settings.train.steps for place in self.places if place.spec is not None)
        return (self.done + running) / max(1, len(self.start.every))

    def _row(self, number: int, place: WorkerState) -> Row:
        spec = place.spec
        assert spec is not None
        label = place.name if len(self.places) > 1 else ""
        names = (self._full(spec), self._short(spec))
        seconds = _clock(time.monotonic() - place.since)
        if place.stage is Stage.starting:
            return Row(label, names, None, (f"{self._turning()} starting, {seconds}",))
        steps = spec.settings.train.steps
        left = self.time_left.of_run(number)
        if place.stage is Stage.evaluating:
            done = f"eval {place.evaluated[0]:,}/{place.evaluated[1]:,}" if place.evaluated else "evaluating"
            share = place.evaluated[0] / place.evaluated[1] if place.evaluated else 0.0
            return Row(label, names, share, (done, f"{self._turning()} {seconds}"))
        facts = (f"{place.step:,}/{steps:,}", f"{duration(left)} left" if left is not None else self._turning())
        return Row(label, names, place.step / steps, facts, place.report.details if place.report else ())

    def _turning(self) -> str:
        return TURNING[int(time.monotonic() * DRAWS_PER_SECOND) % len(TURNING)]


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
