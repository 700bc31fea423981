"""Delete runs: their folders, and every link of every table that leads to them. Nothing outside `runs` is touched."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from comt_cli.errors import StorageError, UserError
from comt_cli.runs.directory import BeingTrained
from comt_cli.runs.known import FOLDER_NAME, KnownRun
from comt_cli.runs.plan import BY_ID, CHANGED

_REMOVED = ".removed-"
"""In the name of a folder that is being deleted. It begins with a dot, so that no reader takes it for a run."""


def remove_runs(chosen: Sequence[KnownRun], runs: Path) -> None:
    """Delete `chosen`. Each loses its links and is renamed first: a reader, and a process that is stopped half-way,
    sees it whole or not at all. What an earlier call was stopped at is deleted too.

    Raises:
        BeingTrained: another process is training one of them; says which. None of them is deleted, unless it was begun
            meanwhile: then those before are.
        UserError: one of them is no folder of a run below `runs`. None of them is deleted.
        StorageError: the system refuses; those before are deleted.
    """
    folder = runs / BY_ID
    for run in chosen:
        path = run.directory.path
        if path.parent != folder or not FOLDER_NAME.fullmatch(path.name) or path.is_symlink():
            raise UserError(f"{path} is no run below {runs}", "comt rm deletes nothing else.")
    for run in chosen:
        if (owner := _owner(run)) is not None:
            message = f"{run.directory.shown} is being trained by {owner}"
            raise BeingTrained(message, "Wait for it, or stop it; then run this again.", owner)
    for run in chosen:
        with _held(run):
            _remove(run, runs)
    for left in folder.glob(f".*{_REMOVED}*"):
        shutil.rmtree(left, ignore_errors=True)


def _has_lock(run: KnownRun) -> bool:
    """Whether the folder has a lock that a training could hold: of a damaged one it may be a link, or a pipe."""
    return run.directory.lock_file.is_file() and not run.directory.lock_file.is_symlink()


def _owner(run: KnownRun) -> str | None:
    return run.directory.owner() if _has_lock(run) else None


def _held(run: KnownRun) -> contextlib.AbstractContextManager[None]:
    return run.directory.lock() if _has_lock(run) else contextlib.nullcontext()


def _remove(run: KnownRun, runs: Path) -> None:
    path = run.directory.path
    aside = path.with_name(f".{path.name}{_REMOVED}{secrets.token_hex(4)}")
    try:
        for link in run.links:
            link.unlink(missing_ok=True)
            _remove_empty(link.parent, runs)
        path.rename(aside)
        shutil.rmtree(aside)
    except FileNotFoundError:  # another process deleted it
        return
    except OSError as error:
        raise StorageError(f"cannot delete {path}: {error.strerror or error}") from error


def _remove_empty(folder: Path, runs: Path) -> None:
    """Delete `folder` and those around it, as far as they are below `runs` and empty but for their settings."""
    while folder != runs and runs in folder.parents:
        try:
            if [path.name for path in folder.iterdir()] == [CHANGED]:
                (folder / CHANGED).unlink()
            folder.rmdir()  # refuses what is not empty
        except OSError:
            return
        folder = folder.parent
