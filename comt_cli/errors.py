"""Errors with messages for users. All packages raise them; the command line prints them without a traceback."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence


class UserError(Exception):
    """An error that the user can fix. `message` says what is wrong and where, `hint` what would be right. The command
    line prints both and exits with `exit_status` (2: nothing was started or changed)."""

    exit_status = 2

    def __init__(self, message: str, hint: str | None = None, *more: object) -> None:
        super().__init__(message, hint, *more)  # all arguments, so that errors can be pickled between processes
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"


class RunInterrupted(UserError):
    """A signal stopped a run, after it saved its state. The exit status is 128 + signal, as in a shell."""

    def __init__(self, message: str, hint: str | None, signal_number: int) -> None:
        super().__init__(message, hint, signal_number)
        self.signal_number = signal_number
        self.exit_status = 128 + signal_number


class StorageError(UserError):
    """A write to disk failed (full, removed, read-only). Everything saved before is intact."""

    exit_status = 1


class ProcessLost(UserError):
    """Another of the processes that train a run together ended, or cannot be reached."""

    exit_status = 1


_NO_ROOM = ("failed to map segment", "cannot allocate memory", "cannot create shared object")


def of_surroundings(error: Exception, arguments: Sequence[str] = ()) -> UserError | None:
    """A `UserError` for an error that the environment caused: an unusable file, a full disk, too little memory, too few
    open files, an argument that is not text. None for any other error, which is a defect of the program."""
    number, text = getattr(error, "errno", None), getattr(error, "strerror", None) or str(error)
    if number in (errno.EMFILE, errno.ENFILE):
        return StorageError(f"the limit of open files is too low: {text}", "Raise it: ulimit -n 1024.")
    if isinstance(error, MemoryError) or any(part in text.lower() for part in _NO_ROOM):
        return StorageError("there is too little memory", "Check ulimit -v, or the limit of the container or job.")
    if isinstance(error, OSError) and error.filename is not None:
        # Integer names are file descriptors.
        name = f"file {error.filename}" if isinstance(error.filename, int) else os.fsdecode(error.filename)
        kind = StorageError if number in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG) else UserError
        refused = "Check its permissions and those of the folders above it."
        return kind(f"cannot use {name}: {text}", refused if isinstance(error, PermissionError) else None)
    if isinstance(error, UnicodeEncodeError | TypeError):  # TypeError: a tokenizer's error for such a character
        for argument in arguments:
            if any("\ud800" <= letter <= "\udfff" for letter in argument):
                return UserError(f"the argument {argument!a} is not UTF-8 text", "Check the terminal's encoding.")
    return None
