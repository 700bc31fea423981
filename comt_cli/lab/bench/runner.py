"""The runner of all benchmarks: measured cases one after another, within a time, whatever fails or does not fit.

A case is a set of variants that take turns (`timing`). The runner builds them, times their parts, and yields lines of
progress and the rows that the case makes of the times.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from comt_cli.commit import git_commit
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.kernels.choice import use_tiles, version_of
from comt_cli.lab.bench.timing import Part, Times, free, in_turns, stopwatch_for, unsettled
from comt_cli.training.devices import prepare_process
from comt_cli.training.processes import StopSignal

Row = dict[str, Any]
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_OUT_OF_TIME = "left out for want of time"
_NEWS = 5.0
"""Seconds between two lines about rounds."""


@dataclass(frozen=True)
class Rows:
    """What a case was measured to be: rows of a page."""

    page: str
    rows: list[Row]


class Failed(str):
    """A line of progress that says what failed, so that the command does not end as if all had been well."""

    __slots__ = ()


News = str | Rows


class Unavailable(Exception):
    """A variant that there is not on this machine; says why."""


class NotMeasured(UserError):
    """A part of what was wanted has not been measured, or nothing at all has."""

    exit_status = 1


class Deadline:
    """A point in time, and whether it is still to come when it is called. Asking raises `KeyboardInterrupt` once `stop`
    has received a signal: where it is asked, nothing is half done."""

    def __init__(
        self, seconds: float = math.inf, stop: StopSignal | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._end, self._stop, self._clock = clock() + seconds, stop, clock

    def left(self) -> float:
        """Seconds; below 0 when it has passed."""
        if self._stop is not None and self._stop.number is not None:
            raise KeyboardInterrupt
        return self._end - self._clock()

    def __call__(self) -> bool:
        return self.left() > 0


@dataclass(frozen=True)
class Turns:
    """How often everything is timed at least, and until when."""

    rounds: int
    deadline: Deadline = field(default_factory=Deadline)


@dataclass(frozen=True)
class Built:
    """One variant, ready to be timed: its parts by name, what else is known of it (`facts`), and remarks."""

    parts: Mapping[str, Part]
    facts: Any = None
    notes: Sequence[str] = ()


class Case:
    """Variants that take turns, by their keys, in the order of their rows; `what` says of what. A subclass builds them
    and makes rows of their times.

    Attributes:
        page: that its rows belong to.
        optional: variants that are left out where they do not fit in memory; built last.
        head_start: of `stopwatch_for`.
    """

    page: str
    head_start: ClassVar[bool] = False
    warm_up: ClassVar[int] = 1
    optional: frozenset[Any] = frozenset()

    def __init__(self, what: str, keys: Sequence[Any], device: torch.device) -> None:
        self.what, self.keys, self.device = what, keys, device

    def builder(self) -> Callable[[Any], Built]:
        """What builds a variant and has run it once. Raises `Unavailable` where there is no such here. What variants
        share is kept by it, not by the case, and freed with it."""
        raise NotImplementedError

    def rows(self, ready: Mapping[Any, Built], times: Mapping[tuple[str, Any], Times]) -> list[Row]:
        """The rows, from the times by part and key."""
        raise NotImplementedError

    def halved(self) -> Case | None:
        """A smaller one to be measured instead where this does not fit in memory; None: there is none."""
        return None

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """The settings of the process; those of training."""
        prepare_process(self.device)
        yield

    def before_timing(self, ready: Mapping[Any, Built]) -> None:
        """Called when all are built."""


def run_cases(cases: Iterable[Case], turns: Turns) -> Iterator[News]:
    """Measure them; yields lines of progress and the rows of each. What fails is reported (`Failed`), what there is no
    time for is named, and the rest is measured."""
    for case in cases:
        if not turns.deadline():
            yield f"{case.what}: {_OUT_OF_TIME}"
            continue
        current: Case | None = case
        while current is not None:
            torch._dynamo.reset()
            use_tiles((), only=True)  # of another batch or type
            free(current.device)
            smaller = None
            try:
                with current.surroundings():
                    yield from _measured(current, turns)
            except torch.cuda.OutOfMemoryError:
                smaller = current.halved()
                again = f"{current.what}: too large, once more with half the batch"
                yield again if smaller is not None else Failed(f"{current.what}: failed (it does not fit)")
            except Exception as error:
                yield failed(current.what, error)
            current = smaller
        torch._dynamo.reset()
        free(case.device)


def _measured(case: Case, turns: Turns) -> Iterator[News]:
    build, ready = case.builder(), dict[Hashable, Built]()
    # Those that must fit come first: whether the batch is too large shows before time is spent on the others.
    for key in sorted(case.keys, key=lambda key: key in case.optional):
        what = f"{case.what} {key if isinstance(key, str) else ' '.join(map(str, key))}"
        if not turns.deadline():
            yield f"{what}: {_OUT_OF_TIME}"
            continue
        begin, problem = time.perf_counter(), ""
        try:
            ready[key] = build(key)
        except Unavailable as reason:
            problem = f"{what}: left out, {reason}"
        except torch.cuda.OutOfMemoryError:
            if key not in case.optional:
                raise
            problem = f"{what}: left out, does not fit"
        except Exception as error:
            problem = failed(what, error)
        if problem:
            free(case.device)  # the error's trace is gone, and with it what it held
            yield problem
            continue
        yield from (f"{what}: {note}" for note in ready[key].notes)
        if (took := time.perf_counter() - begin) >= 1:
            yield f"{what}: ready after {took:.1f} s"
    if not ready:
        return
    case.before_timing(ready)
    parts = {(name, key): part for key, built in ready.items() for name, part in built.parts.items()}
    times = yield from _timed(case, parts, turns)
    yield Rows(case.page, case.rows({key: ready[key] for key in case.keys if key in ready}, times))
    yield f"{case.what}: {unsettled(times) or f'measured in {len(next(iter(times.values())).seconds)} rounds'}"


def _timed(
    case: Case, parts: Mapping[tuple[str, Hashable], Part], turns: Turns
) -> Generator[str, None, dict[tuple[str, Hashable], Times]]:
    stopwatch, last = stopwatch_for(case.device, head_start=case.head_start), time.monotonic()
    measured = in_turns(parts, turns.rounds, stopwatch, case.warm_up, turns.deadline)
    while True:
        try:
            number = next(measured)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        if time.monotonic() - last > _NEWS:
            last = time.monotonic()
            yield f"{case.what}: round {number}{f' of {turns.rounds}' if number <= turns.rounds else ', to settle'}"


def versions() -> dict[str, str | None]:
    """The columns that end a row: the libraries and the commit of a measurement."""
    return {"torch": torch.__version__, "triton": version_of("triton"), "git_commit": git_commit()}


# ---- how a benchmark ends


def failed(what: str, error: Exception) -> Failed:
    """`60m bf16 swiglu: failed (RuntimeError: the first line of it)`; an error that is written for people as it is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, UserError):
        return Failed(f"{what}: failed ({'; '.join(lines)})")
    return Failed(f"{what}: failed ({': '.join([type(error).__name__, *lines[:1]])})")


@dataclass
class Outcome:
    """How many rows a command has measured, and the lines that say what failed."""

    rows: int = 0
    failed: list[str] = field(default_factory=list)

    def add(self, news: News) -> None:
        """Count what a benchmark yields."""
        if isinstance(news, Rows):
            self.rows += len(news.rows)
        elif isinstance(news, Failed):
            self.failed.append(news)

    def end(self) -> None:
        """Raises `NotMeasured` where something failed, or there is not one row."""
        if self.failed:
            count = f"{len(self.failed)} part{'s' if len(self.failed) != 1 else ''} failed"
            rest = "the rest was measured" if self.rows else "nothing was measured"
            raise NotMeasured(f"{count}, {rest}", "\n  ".join(self.failed))
        if not self.rows:
            raise NotMeasured("nothing was measured: all of it was left out", "The lines above say why.")


@contextlib.contextmanager
def measuring(
    outcome: Outcome,
    seconds: float | None,
    counted: str = "rows",
    hint: str = "The same command measures all of it anew.",
) -> Iterator[Deadline]:
    """What measures within this context asks the deadline, which so many seconds from now or a signal brings.

    Raises:
        RunInterrupted: a signal came; what whole rounds had measured has been passed on.
        NotMeasured: see `Outcome.end`.
    """

    def announce(again: bool) -> None:
        # In a signal's handler: past the buffer, of which it may have interrupted a line.
        with contextlib.suppress(OSError):
            os.write(2, b"stopping at once\n" if again else b"stopping after the part at hand; again: at once\n")

    with StopSignal(announce) as stop:
        try:
            yield Deadline(math.inf if seconds is None else seconds, stop)
        except KeyboardInterrupt:
            if stop.number is None:
                raise
    if stop.number is not None:
        rows = f"{counted} measured: {outcome.rows}, those cut short not settled"
        said = rows if outcome.rows else "nothing was measured in a whole round"
        raise RunInterrupted(f"interrupted: {said}", hint, stop.number)
    outcome.end()
