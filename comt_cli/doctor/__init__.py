"""`comt doctor`: a numbered preflight of this machine."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """The outcome of a check, with a `fix` if the status is not ok."""

    status: Status
    text: str
    fix: str | None = None


def judge(text: str, *problems: tuple[bool, Status, str, str | None]) -> Finding:
    """The finding for the first of `problems` (condition, status, problem, fix) that holds; else ok."""
    for is_one, status, wrong, fix in problems:
        if is_one:
            return Finding(status, f"{text}; {wrong}", fix)
    return Finding("ok", text)
