"""User errors for ordinary mistakes in a method's file, such as a wrong import, with file and line."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from comt_cli.errors import UserError

_METHODS = Path(__file__).resolve().parent
_PACKAGE = _METHODS.parent
_HINT = "Set PYTHONDEVMODE=1 in the environment for the whole traceback."
NO_METHODS = ("__init__", "base", "mistakes")
"""Files of this folder without a method."""


@contextlib.contextmanager
def naming_mistakes() -> Iterator[None]:
    """Convert an error in a method's file into a `UserError` with the method, file and line. Also a decorator. The
    error belongs to that file if the file called none of the program's own code. Errors from such code may be defects
    of the program and keep their traceback."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        ours = _places(error)
        if not ours or not _is_a_methods(ours[-1][0]):
            raise
        file, line = ours[-1]
        raise mistake(file, _in_words(error), line) from error


def mistake(file: Path, what: str, line: int | None = None, hint: str | None = None) -> UserError:
    """Error for a mistake in a method's file."""
    at_line = "" if line is None else f", line {line}"
    name = file.stem.replace("_", "-")
    return UserError(f"method {name} ({file.relative_to(_PACKAGE.parent).as_posix()}{at_line}): {what}", hint)


def mistake_of(method: type, error: Exception) -> UserError | None:
    """Error for a network that fails where the plain method's does not, or None if the method's file is not involved.
    The line is that of the method's file that raised the error; else of the class there whose object was active; else,
    if something there was called with wrong arguments, of the method itself."""
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        path, at_work = Path(frame.f_code.co_filename).resolve(), type(frame.f_locals.get("self"))
        if path == Path(inspect.getfile(method)).resolve():
            return mistake(path, _in_words(error), line, _HINT)
        if at_work.__module__ == method.__module__:
            return mistake_at(at_work, _in_words(error), _HINT)
    called = vars(sys.modules[method.__module__]).get(str(error).partition(".")[0])
    is_its = isinstance(error, TypeError) and getattr(called, "__module__", None) == method.__module__
    return mistake_at(method, _in_words(error), _HINT) if is_its else None


def mistake_at(kind: type, what: str, hint: str | None = None) -> UserError:
    """Error for a mistake in a class of a method's file."""
    return mistake(Path(inspect.getfile(kind)).resolve(), what, inspect.getsourcelines(kind)[1], hint)


def with_place(reason: str, error: Exception) -> str:
    """`reason` with the line of a method's file that the error passed through, if any."""
    through = [place for place in _places(error) if _is_a_methods(place[0])]
    return f"{reason} ({_METHODS.name}/{through[-1][0].name}, line {through[-1][1]})" if through else reason


def _places(error: Exception) -> list[tuple[Path, int]]:
    if isinstance(error, SyntaxError):  # raised at import, without a frame
        places = [(error.filename or "", error.lineno or 1)]
    else:
        places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return [(path, line) for name, line in places if _PACKAGE in (path := Path(name).resolve()).parents]


def _is_a_methods(file: Path) -> bool:
    return file.parent == _METHODS and file.stem not in NO_METHODS


def _in_words(error: Exception) -> str:
    if isinstance(error, ImportError | SyntaxError):
        return str(error.msg)
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
