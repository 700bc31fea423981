"""The runner of all benchmarks: cases one after another, within a time limit, despite failures. A case is a set of
variants that alternate (`timing`), and makes rows of their times."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import typer

from comt_cli.commit import git_commit
from comt_cli.data.storage import first_line
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.kernels.choice import use_tiles, version_of
from comt_cli.lab.timing import Part, Times, free, in_turns, stopwatch_for, unsettled
from comt_cli.report.terminal import say_written
from comt_cli.training.devices import prepare_process
from comt_cli.training.processes import StopSignal

Row = dict[str, Any]
Write = Callable[[str, list[Row]], Iterable[Path]]  # takes a page's name and rows, returns the files
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
OUT_OF_TIME = "left out, no time left"


class Unavailable(Exception):
    """A variant that is not available on this machine; the text is the reason."""


class NotMeasured(UserError):
    """A part of the requested measurements, or all of them, is missing."""

    exit_status = 1


class Session:
    """A command that measures: the least number of rounds, the minutes, the failures, and the number of `rows` given to
    `write` with their page, which returns the files that it wrote. Pages are printed at the end. Ends with
    `RunInterrupted` after a signal, once the results of whole rounds are written; and with `NotMeasured` if something
    failed, or there is no row."""

    def __init__(self, rounds: int = 15, minutes: float | None = None, write: Write = lambda *_: ()) -> None:
        self.rounds, self.write = rounds, write
        self._end = time.monotonic() + (math.inf if minutes is None else 60 * minutes)
        self._stop = StopSignal(_announce)
        self.rows, self.failed, self._written = 0, list[str](), dict[Path, None]()

    def left(self) -> float:
        """Remaining seconds; negative when the time is up, and minus infinity after a signal."""
        return -math.inf if self._stop.number is not None else self._end - time.monotonic()

    def goes_on(self) -> bool:
        return self.left() > 0

    def say(self, line: str) -> None:
        typer.echo(line, err=True)

    def fail(self, what: str, error: Exception) -> None:
        self.failed.append(f"{what}: failed ({type(error).__name__}: {first_line(error)})")
        self.say(self.failed[-1])

    def add(self, page: str, rows: list[Row]) -> None:
        """Count the rows and write them."""
        self.rows += len(rows)
        self._written.update(dict.fromkeys(self.write(page, rows)))

    def __enter__(self) -> Self:
        self._stop.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.__exit__()
        for path in self._written:
            if path.suffix == ".md":
                typer.echo(path.read_text(encoding="utf-8"))
        say_written(self._written)
        if self._stop.number is not None and kind in (None, KeyboardInterrupt):
            said = f"interrupted: measured {self.rows}, those cut short not settled"
            raise RunInterrupted(said, "The same command measures what is missing.", self._stop.number)
        if kind is not None:
            return
        if self.failed:
            raise NotMeasured(f"failed: {len(self.failed)}; rows measured: {self.rows}", "\n  ".join(self.failed))
        if not self.rows:
            raise NotMeasured("nothing was measured", "The lines above have the reasons.")


def _announce(again: bool) -> None:
    if not again:  # in a signal's handler: unbuffered, since it may have interrupted a line
        os.write(2, b"stopping after the present part; a second signal stops at once\n")


@dataclass(frozen=True)
class Built:
    """One variant, ready to be timed: its parts by name, its `facts` for the case, and a remark."""

    parts: Mapping[str, Part]
    facts: Any = None
    note: str = ""


class Case:
    """Variants of `what` that alternate, by their keys, in the order of the rows of `page`."""

    page: str
    what: str
    keys: Sequence[Any]
    device: torch.device
    deterministic: bool = True
    head_start: ClassVar[bool] = False

    def build(self, key: Any, shared: dict[Any, Any]) -> Built:
        """A variant that has run once. Raises `Unavailable`. `shared` holds what variants have in common."""
        raise NotImplementedError

    def rows(self, ready: Mapping[Any, Built], times: Mapping[tuple[str, Any], Times]) -> list[Row]:
        """The rows, from the times by part and key, without versions."""
        raise NotImplementedError


def run_cases(cases: Iterable[Case], session: Session) -> None:
    """Measure the cases. Failures are reported, cases without time are named, and the rest is measured."""
    for case in cases:
        if not session.goes_on():
            session.say(f"{case.what}: {OUT_OF_TIME}")
            continue
        torch._dynamo.reset()
        use_tiles((), only=True)  # of another batch or type
        free(case.device)
        try:
            prepare_process(case.device, deterministic=case.deterministic)
            _measure(case, session)
        except Exception as error:
            session.fail(case.what, error)
    torch._dynamo.reset()


def _measure(case: Case, session: Session) -> None:
    shared, ready = dict[Any, Any](), dict[Hashable, Built]()
    for key in case.keys:
        what = f"{case.what} {key if isinstance(key, str) else ' '.join(map(str, key))}"
        if not session.goes_on():
            session.say(f"{what}: {OUT_OF_TIME}")
            continue
        try:
            ready[key] = case.build(key, shared)
        except Unavailable as reason:
            session.say(f"{what}: left out, {reason}")
        except torch.cuda.OutOfMemoryError:
            session.say(f"{what}: left out, does not fit")
        except Exception as error:
            session.fail(what, error)
        if key not in ready:
            free(case.device)  # the error's trace, and what it held, is gone
        else:
            session.say(f"{what}: {ready[key].note or 'ready'}")
    if not ready or session.left() == -math.inf:
        return
    parts = {(name, key): part for key, built in ready.items() for name, part in built.parts.items()}
    stopwatch = stopwatch_for(case.device, head_start=case.head_start)
    times = in_turns(parts, session.rounds, stopwatch, session.goes_on)
    made = {"torch": torch.__version__, "triton": version_of("triton"), "git_commit": git_commit()}
    session.add(case.page, [row | made for row in case.rows(ready, times)])
    session.say(f"{case.what}: {unsettled(times) or f'measured in {len(next(iter(times.values())).seconds)} rounds'}")
