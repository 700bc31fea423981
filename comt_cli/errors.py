"""Errors for users: all packages raise these, and the command line prints them without a traceback."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence


class UserError(Exception):
    """An error that the user can fix: `message` states what is wrong and where, `hint` what would be right. The command
    line prints both and exits with `exit_status` (2: nothing was started or changed)."""

    exit_status = 2

    def __init__(self, message: str, hint: str | None = None, *more: object) -> None:
        super().__init__(message, hint, *more)  # all arguments: errors are pickled between processes
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"


class RunInterrupted(UserError):
    """A run was stopped by a signal after it saved its state; the exit status is 128 + signal, as in a shell."""

    def __init__(self, message: str, hint: str | None, signal_number: int) -> None:
        super().__init__(message, hint, signal_number)
        self.signal_number = signal_number
        self.exit_status = 128 + signal_number


class StorageError(UserError):
    """Writing to disk failed (full, removed, read-only). Files saved before are intact."""

    exit_status = 1


_NO_ROOM = ("failed to map segment", "cannot allocate memory", "cannot create shared object")


def of_surroundings(error: Exception, arguments: Sequence[str] = ()) -> UserError | None:
    """The error for the user if an exception comes from the environment: an unusable file, a full disk or memory, too
    many open files, an argument that is not text. None for other exceptions, which are defects."""
    number, said = getattr(error, "errno", None), getattr(error, "strerror", None) or str(error)
    if number in (errno.EMFILE, errno.ENFILE):
        return StorageError(f"the limit of open files is too low: {said}", "Raise it: ulimit -n 1024.")
    if isinstance(error, MemoryError) or any(text in said.lower() for text in _NO_ROOM):
        return StorageError("there is too little memory", "See ulimit -v, or the limit of the container or job.")
    if isinstance(error, OSError) and error.filename is not None:
        # Integer names are file descriptors.
        name = f"file {error.filename}" if isinstance(error.filename, int) else os.fsdecode(error.filename)
        kind = StorageError if number in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG) else UserError
        refused = "Check its permissions, and those of the folders that contain it."
        return kind(f"cannot use {name}: {said}", refused if isinstance(error, PermissionError) else None)
    if isinstance(error, UnicodeEncodeError | TypeError):  # TypeError: tokenizers, for a lone surrogate
        for argument in arguments:
            if any("\ud800" <= letter <= "\udfff" for letter in argument):
                return UserError(f"the argument {argument!a} is not UTF-8 text", "Check the encoding of the terminal.")
    return None
