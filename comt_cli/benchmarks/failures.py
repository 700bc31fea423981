"""What happens when something cannot be measured: it is told, and the rest goes on."""

from __future__ import annotations

from comt_cli.errors import UserError


class Failed(str):
    """A line among the news that says what failed, so that the command does not end as if all had been well."""

    __slots__ = ()


class NotMeasured(UserError):
    """A part of what was wanted has not been measured, or nothing at all has. What was measured is written."""

    exit_status = 1


def failed(what: str, error: Exception) -> Failed:
    """`60m bf16 swiglu: failed (RuntimeError: the first line of it)`; an error that is written for people as it is."""
    if isinstance(error, UserError):
        return Failed(f"{what}: failed ({'; '.join(line.strip() for line in str(error).splitlines())})")
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return Failed(f"{what}: failed ({type(error).__name__}{': ' if first else ''}{first})")
