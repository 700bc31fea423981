"""The display of a file or a pipe: a line when something starts or ends, and one every half minute in between; and the
choice between this display and the others."""

from __future__ import annotations

import os
import sys
import time

from comt_cli.campaign.display import Display, Stage, StatefulDisplay, WorkerState
from comt_cli.campaign.opening import Workload, opening
from comt_cli.campaign.outcomes import RunOutcome
from comt_cli.runs.plan import RunSpec
from comt_cli.training.events import Event, Note, RunStarted
from comt_cli.words import duration

SILENT_SECONDS = 30.0
"""After so long without a line, one shows the state of all workers."""


class PlainDisplay(StatefulDisplay):
    """Lines on standard error, without colours or anything else that only a terminal understands."""

    def __init__(self) -> None:
        super().__init__()
        self._printed = 0.0

    def preparing(self, stage: str, done: int, total: int | None) -> None:
        if stage != self.stage:
            self._end_stage()
            self._print(f"{stage} ...")
        elif self._is_time():
            so_far = f"{done:,} of {total:,}" if total else f"{done:,}" if done else "at work"
            self._print(f"{stage}: {so_far}, {self._stage_seconds()}")
        super().preparing(stage, done, total)

    def _end_stage(self) -> None:
        if self.stage:
            done, total = self.counted
            count = max(done, total or 0)
            self._print(f"{self.stage}: {f'{count:,} ' if count else ''}done in {self._stage_seconds()}")

    def _stage_seconds(self) -> str:
        return _took(time.monotonic() - self.stage_began)

    def queue_started(self, workload: Workload) -> None:
        self._end_stage()
        super().queue_started(workload)
        if workload.waiting:
            for subject, text in opening(workload, self.all_left()):
                self._print(f"{subject + ':':7}{text}")

    def run_taken(self, worker: int, spec: RunSpec) -> None:
        super().run_taken(worker, spec)
        if len(self.workers) > 1:
            self._print(f"{self.prefix(worker)}{self.name(spec)}: starting ...")

    def run_event(self, worker: int, event: Event) -> None:
        state = self.workers[worker]
        was, since = state.stage, state.since
        super().run_event(worker, event)
        match event:
            case Note(text):
                self._print(f"{self.prefix(worker)}note: {text}")
            case RunStarted(step) if state.spec is not None:
                took = f", started in {_took(time.monotonic() - since)}" if was is Stage.starting else ""
                resumed = f", resumed after step {step:,}" if step else ""
                name, steps = self.name(state.spec), state.spec.settings.train.steps
                self._print(f"{self.prefix(worker)}{name}: {steps:,} steps{resumed}{took}")

    def show_waiting(self, text: str) -> None:
        self._print(f"{text} ...")

    def run_ended(self, worker: int, ended: RunOutcome) -> None:
        super().run_ended(worker, ended)
        self._print(f"{self.count} {self.name(ended.spec)}: {ended}")

    def tick(self) -> None:
        if self._is_time():
            running = [self._where(number, state) for number, state in enumerate(self.workers) if state.spec]
            if running:
                left = self.all_left()
                all_left = f"; all runs: about {duration(left)} left" if left is not None else ""
                self._print(f"{self.count} {'; '.join(running)}{all_left}")

    def _where(self, number: int, state: WorkerState) -> str:
        """How far a worker's run is."""
        assert state.spec is not None
        name = f"{self.prefix(number)}{self.name(state.spec)}"
        if state.stage is Stage.starting:
            return f"{name}: starting, {_took(time.monotonic() - state.since)}"
        parts = [f"step {state.step:,} of {state.spec.settings.train.steps:,}"]
        if state.report is not None:
            parts.append(str(state.report))
        if state.stage is Stage.evaluating:
            found = state.evaluated
            parts.append("evaluating" + (f" {found.done:,} of {found.total:,} batches" if found is not None else ""))
        if (left := self.time_left.of_run(number)) is not None:
            parts.append(f"{duration(left)} left")
        return f"{name}: {', '.join(parts)}"

    def stopping(self, again: bool) -> None:
        super().stopping(again)
        # In a signal's handler, which may have interrupted a line: written past the buffer, which it would damage.
        try:
            os.write(sys.stderr.fileno(), f"{self.stop_text}\n".encode())
        except (OSError, ValueError, AttributeError):
            self._print(str(self.stop_text))

    def _is_time(self) -> bool:
        return time.monotonic() - self._printed > SILENT_SECONDS

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        print(text, file=sys.stderr, flush=True)


def make_display(is_main: bool = True) -> Display:
    """Bars on a terminal, plain lines elsewhere, silence in all processes but the main one."""
    if not is_main:
        return Display()
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        from comt_cli.campaign.live_display import LiveDisplay

        return LiveDisplay()
    return PlainDisplay()


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
