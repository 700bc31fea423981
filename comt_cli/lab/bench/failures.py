"""What happens when something cannot be measured: it is reported, and the rest is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from comt_cli.errors import UserError


class Failed(str):
    """A line of progress that says what failed, so that the command does not end as if all had been well."""

    __slots__ = ()


class NotMeasured(UserError):
    """A part of what was wanted has not been measured, or nothing at all has."""

    exit_status = 1


def failed(what: str, error: Exception) -> Failed:
    """`60m bf16 swiglu: failed (RuntimeError: the first line of it)`; an error that is written for people as it is."""
    if isinstance(error, UserError):
        return Failed(f"{what}: failed ({'; '.join(line.strip() for line in str(error).splitlines())})")
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return Failed(f"{what}: failed ({type(error).__name__}{': ' if first else ''}{first})")


@dataclass
class Outcome:
    """How many rows a command has measured, and the lines that say what failed."""

    rows: int = 0
    failed: list[str] = field(default_factory=list)

    def add(self, news: str | Sequence[object]) -> None:
        """Count what a benchmark yields: rows, or a line."""
        if isinstance(news, Failed):
            self.failed.append(news)
        elif not isinstance(news, str):
            self.rows += len(news)

    def end(self) -> None:
        """Nothing where all went well, left-out variants included.

        Raises:
            NotMeasured: something failed, or there is not one row.
        """
        if self.failed:
            count = f"{len(self.failed)} part{'s' if len(self.failed) != 1 else ''} failed"
            rest = "the rest was measured" if self.rows else "nothing was measured"
            raise NotMeasured(f"{count}, {rest}", "\n  ".join(self.failed))
        if not self.rows:
            raise NotMeasured("nothing was measured: all of it was left out", "The lines above say why.")
