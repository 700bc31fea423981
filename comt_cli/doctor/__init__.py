"""`comt doctor`: a numbered preflight of this machine."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """The outcome of a check; `fix` says what to do about a status that is not ok."""

    status: Status
    text: str
    fix: str | None = None


def judge(text: str, *problems: tuple[bool, Status, str, str | None]) -> Finding:
    """The first of `problems` (whether there is one, status, what is wrong, what to do) behind the text; ok without."""
    for is_one, status, wrong, fix in problems:
        if is_one:
            return Finding(status, f"{text}; {wrong}", fix)
    return Finding("ok", text)
