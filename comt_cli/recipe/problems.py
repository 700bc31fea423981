"""What is wrong with a recipe, and where: file, line, dotted key, nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from comt_cli.errors import UserError

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `line` is 1-based, None for what was said on the command line.

    `source` is the file, where that is not the recipe itself but a setup that it names.
    """

    key: str
    message: str
    line: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}"
        place = ", ".join(part for part in (self.source, line) if part)
        place = f"{place}: " if place else ""
        return f"{place}{self.key}: {self.message}" if self.key else f"{place}{self.message}"


class RecipeError(UserError):
    """A recipe that cannot be run; holds every problem found, in the order of the file, its setups' last."""

    def __init__(self, source: Path | str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.source or "", problem.line or 0)))
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        listing = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{source}: {count}, nothing was started\n{listing}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.source, self.problems)


def dotted(path: Iterable[str | int]) -> str:
    """`("rows", "pre-ln", "sites", 0)` as `rows.pre-ln.sites[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def closest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that a wrong one was probably meant to be; None if none is near."""
    return next(iter(difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)), None)


def nearest(name: str, valid: Iterable[str]) -> str:
    """A phrase that points from a wrong name to the right one: the closest, or all of them."""
    options = list(valid)
    close = closest(name, options)
    if close is not None:
        return f"did you mean {close}?"
    return f"valid: {', '.join(options)}" if options else "no keys are allowed here"
