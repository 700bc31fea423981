"""What a check of `comt doctor` has to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """What a check found; `fix` says what to do about a status that is not ok."""

    status: Status
    text: str
    fix: str | None = None
