"""What a file or a pipe gets: a line when something starts, a line when it ends, and one now and then in between."""

from __future__ import annotations

import os
import sys
import time

from comt_cli.campaign.opening import opening
from comt_cli.campaign.outcomes import RunOutcome, run_name
from comt_cli.campaign.progress import Stage, Start, Telling, WorkerState, in_words
from comt_cli.runs.plan import RunSpec
from comt_cli.words import duration

SILENT_SECONDS = 30.0
"""How long it may be silent; then a line says where everything is."""


class PlainDisplay(Telling):
    """Lines on standard error, without colours or anything else that only a terminal understands."""

    def __init__(self) -> None:
        super().__init__()
        self._spoke = 0.0
        self._counted: tuple[int, int | None] = (0, None)
        self._with_table = False

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        if stage != self.stage:
            self._end_stage()
            super().preparing(stage, done, total)
            self._say(f"{stage} ...")
        elif self._is_time():
            so_far = f"{done:,} of {total:,}" if total else f"{done:,}" if done else "at work"
            self._say(f"{stage}: {so_far}, {self._stage_seconds()}")
        self._counted = (done, total)

    def _end_stage(self) -> None:
        if self.stage:
            done, total = self._counted
            count = max(done, total or 0)
            self._say(f"{self.stage}: {f'{count:,} ' if count else ''}done in {self._stage_seconds()}")

    def _stage_seconds(self) -> str:
        return _took(time.monotonic() - self.stage_began)

    def queue_started(self, start: Start) -> None:
        self._end_stage()
        super().queue_started(start)
        self._with_table = len({(spec.paper, spec.table) for spec in start.every}) > 1
        if start.waiting:
            for subject, text in opening(start, self.all_left()):
                self._say(f"{subject + ':':7}{text}")

    def run_taken(self, worker: int, spec: RunSpec) -> None:
        super().run_taken(worker, spec)
        if len(self.places) > 1:
            self._say(f"{self._at(worker)}{self._name(spec)}: starting ...")

    def run_started(self, worker: int, spec: RunSpec, step: int) -> None:
        place = self.places[worker]
        took = f", started in {_took(time.monotonic() - place.since)}" if place.stage is Stage.starting else ""
        super().run_started(worker, spec, step)
        resumed = f", going on after step {step:,}" if step else ""
        self._say(f"{self._at(worker)}{self._name(spec)}: {spec.settings.train.steps:,} steps{resumed}{took}")

    def waits(self, text: str) -> None:
        self._say(f"{text} ...")

    def warn(self, worker: int, text: str) -> None:
        self._say(f"{self._at(worker)}note: {text}")

    def run_ended(self, worker: int, ended: RunOutcome) -> None:
        super().run_ended(worker, ended)
        total = len(self.start.every) if self.start is not None else 0
        self._say(f"[{self.done}/{total}] {self._name(ended.spec)}: {in_words(ended)}")

    def tick(self) -> None:
        if self._is_time():
            running = [self._where(number, place) for number, place in enumerate(self.places) if place.spec is not None]
            if running:
                left = self.all_left()
                total = len(self.start.every) if self.start is not None else 0
                all_left = f"; all runs: about {duration(left)} left" if left is not None else ""
                self._say(f"[{self.done}/{total}] {'; '.join(running)}{all_left}")

    def _where(self, number: int, place: WorkerState) -> str:
        assert place.spec is not None
        name = f"{self._at(number)}{self._name(place.spec)}"
        if place.stage is Stage.starting:
            return f"{name}: starting, {_took(time.monotonic() - place.since)}"
        said = [f"step {place.step:,} of {place.spec.settings.train.steps:,}"]
        if place.report is not None:
            said.append(str(place.report))
        if place.stage is Stage.evaluating:
            done = f" {place.evaluated[0]:,} of {place.evaluated[1]:,} batches" if place.evaluated else ""
            said.append(f"evaluating{done}")
        if (left := self.time_left.of_run(number)) is not None:
            said.append(f"{duration(left)} left")
        return f"{name}: {', '.join(said)}"

    def stopping(self, again: bool) -> None:
        super().stopping(again)
        # In a signal's handler, which may have interrupted a line: written past the buffer, which it would damage.
        try:
            os.write(sys.stderr.fileno(), f"{self.stop_text}\n".encode())
        except (OSError, ValueError, AttributeError):
            self._say(str(self.stop_text))

    def _at(self, worker: int) -> str:
        return f"{self.places[worker].name}: " if len(self.places) > 1 else ""

    def _name(self, spec: RunSpec) -> str:
        return run_name(spec, with_table=self._with_table)

    def _is_time(self) -> bool:
        return time.monotonic() - self._spoke > SILENT_SECONDS

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        print(text, file=sys.stderr, flush=True)


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
