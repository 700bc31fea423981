"""Delete runs: their folders, and every link of every table that leads to them. Nothing outside `runs` is touched."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from comt_cli.errors import StorageError, UserError
from comt_cli.recipe.known_runs import FOLDER_NAME, KnownRun
from comt_cli.recipe.plan import BY_ID

_REMOVED = ".removed-"
"""In the name of a folder that is being deleted. It begins with a dot, so that no reader takes it for a run."""


def remove_runs(chosen: Sequence[KnownRun], runs: Path) -> None:
    """Delete `chosen`. Each is renamed first: a reader, and a process that is stopped half-way, sees it whole or not at
    all. What an earlier call was stopped at is deleted too.

    Raises:
        BeingTrained: another process is training one of them; says which. None of them is deleted.
        UserError: one of them is no folder of a run below `runs`. None of them is deleted.
        StorageError: the system refuses; those before are deleted.
    """
    folder = runs / BY_ID
    for run in chosen:
        path = run.directory.path
        if path.parent != folder or not FOLDER_NAME.fullmatch(path.name) or path.is_symlink():
            raise UserError(f"{path} is no run below {runs}", "comt rm deletes nothing else.")
    with contextlib.ExitStack() as locks:
        for run in chosen:
            if run.directory.path.is_dir():
                locks.enter_context(run.directory.lock())
        for run in chosen:
            _remove(run, runs)
    for left in folder.glob(f".*{_REMOVED}*"):
        shutil.rmtree(left, ignore_errors=True)


def _remove(run: KnownRun, runs: Path) -> None:
    path = run.directory.path
    aside = path.with_name(f".{path.name}{_REMOVED}{secrets.token_hex(4)}")
    try:
        path.rename(aside)
        for link in run.links:
            link.unlink(missing_ok=True)
            _remove_empty(link.parent, runs)
        shutil.rmtree(aside)
    except FileNotFoundError:  # another process deleted it
        return
    except OSError as error:
        raise StorageError(f"cannot delete {path}: {error.strerror or error}") from error


def _remove_empty(folder: Path, runs: Path) -> None:
    """Delete `folder` and those around it, as far as they are empty and below `runs`."""
    while folder != runs and runs in folder.parents:
        try:
            folder.rmdir()  # refuses what is not empty
        except OSError:
            return
        folder = folder.parent
