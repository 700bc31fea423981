"""An ordinary mistake in a method's file, such as a wrong import: said with its place, for whoever writes the file."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from comt_cli.errors import UserError

_METHODS = Path(__file__).resolve().parent
_PACKAGE = _METHODS.parent
NO_METHODS = ("__init__", "base", "mistakes", "named")
"""Files of this folder that no method is in."""


@contextlib.contextmanager
def naming_mistakes() -> Iterator[None]:
    """Turn an error of a method's file into a `UserError` that names the method, the file and the line.

    The error is that file's if none of the program's own code was called from there: what such code raises may be a
    defect of the program, and keeps its traceback. Also serves as a decorator.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        place = _place(error)
        if place is None:
            raise
        raise mistake(place[0], _in_words(error), place[1]) from error


def mistake(file: Path, what: str, line: int | None = None, hint: str | None = None) -> UserError:
    """The error that says what is wrong in a method's file."""
    at_line = "" if line is None else f", line {line}"
    name = file.stem.replace("_", "-")
    return UserError(f"method {name} ({file.relative_to(_PACKAGE.parent).as_posix()}{at_line}): {what}", hint)


def _place(error: Exception) -> tuple[Path, int] | None:
    """The method's file and the line where an error arose; None where that is in no such file."""
    if isinstance(error, SyntaxError):  # of a file that was to be imported: it has no frame yet
        places = [(error.filename or "", error.lineno or 1)]
    else:
        places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    ours = [(path, line) for name, line in places if _PACKAGE in (path := Path(name).resolve()).parents]
    if not ours or ours[-1][0].parent != _METHODS or ours[-1][0].stem in NO_METHODS:
        return None
    return ours[-1]


def _in_words(error: Exception) -> str:
    if isinstance(error, ImportError | SyntaxError):
        return str(error.msg)
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
