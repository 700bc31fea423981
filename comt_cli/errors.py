"""The errors that are written for people: every room raises these, the command line prints them without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend.

    `message` says what is wrong and where, `hint` what would be right. The command line prints both and exits
    with `exit_status` (2: nothing was started or changed).
    """

    exit_status = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:  # errors travel between the processes of a distributed run
        return type(self), (self.message, self.hint)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"


class RunInterrupted(UserError):
    """A run was stopped by a signal after it saved its state; the exit status is the shell's 128 + signal."""

    def __init__(self, message: str, hint: str | None, signal_number: int) -> None:
        super().__init__(message, hint)
        self.signal_number = signal_number
        self.exit_status = 128 + signal_number

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message, self.hint, self.signal_number)


class StorageError(UserError):
    """Writing to disk failed (full, removed, read-only). What was saved before is intact."""

    exit_status = 1
