"""What lies prepared in the cache, for the checks of `comt doctor`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from comt_cli.data.manifest import MANIFEST, PreparedFolder
from comt_cli.doctor.finding import Finding
from comt_cli.errors import UserError

M = TypeVar("M", bound=PreparedFolder)


def prepared(cache: Path, kind: type[M], said: Callable[[M], str]) -> tuple[list[str], list[str]]:
    """What is `said` of every folder that was prepared, and the folders whose list of files cannot be read."""
    here, damaged = [], []
    for path in sorted(cache.glob(f"*/{MANIFEST}")):
        folder = path.parent
        try:
            here.append(said(kind.read(folder, folder.name.partition("-")[0])))
        except UserError:
            damaged.append(str(folder))
    return here, damaged


def in_cache(text: str, here: list[str], damaged: list[str]) -> Finding:
    """The finding of a check for which all else is well: `text`, what is in the cache, and what there is damaged."""
    return unless_damaged(f"{text}; in the cache: {', '.join(here) or 'none yet'}", damaged)


def unless_damaged(text: str, damaged: list[str]) -> Finding:
    """All is well, or these folders of the cache are damaged."""
    if damaged:
        fix = f"rm -r {' '.join(damaged)}; then run the recipe again"
        return Finding("warn", f"{text}; damaged: {', '.join(damaged)}", fix)
    return Finding("ok", text)
