"""The errors that are written for people: every room raises these, the command line prints them without a traceback."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence


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


_OUT_OF = (errno.EMFILE, errno.ENFILE)
_ADVICE = {
    errno.EACCES: "Its permissions, or those of a folder on the way to it, do not allow that.",
    errno.EPERM: "Its permissions, or those of a folder on the way to it, do not allow that.",
    errno.ENAMETOOLONG: "Most file systems take names of 255 bytes at most.",
}


def of_system(error: OSError) -> UserError | None:
    """What the system refused, for people: a file that cannot be used (bad input), no room on a disk, or no further
    open files; None where it is something else, and a defect."""
    said = error.strerror or str(error)
    if error.errno in _OUT_OF:
        return StorageError(f"too few files may be open at once: {said}", "Raise the limit: ulimit -n 1024.")
    if error.errno == errno.ENOMEM:
        return of_surroundings(MemoryError(), ())
    if error.filename is None:
        return None
    # A number is a descriptor.
    name = f"file {error.filename}" if isinstance(error.filename, int) else os.fsdecode(error.filename)
    kind = StorageError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG) else UserError
    return kind(f"cannot use {name}: {said}", _ADVICE.get(error.errno or 0))


def of_surroundings(error: Exception, arguments: Sequence[str]) -> UserError | None:
    """An error for people where it is this process's surroundings that are at fault: memory that is not there, also for
    a library that cannot be loaded, or an argument that is no text; None elsewhere."""
    if isinstance(error, UnicodeEncodeError):
        for argument in arguments:
            if any("\ud800" <= letter <= "\udfff" for letter in argument):
                return UserError(f"the argument {argument!a} is not UTF-8 text", "Is the terminal's encoding another?")
        return None
    no_room = ("failed to map segment", "cannot allocate memory", "cannot create shared object")
    if isinstance(error, MemoryError) or any(text in str(error).lower() for text in no_room):
        return StorageError("there is too little memory", "See ulimit -v, or the limit of the container or job.")
    return None
