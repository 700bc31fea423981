"""The commit of the running source. Imports nothing heavy."""

from __future__ import annotations

import json
import os
import subprocess
from importlib import metadata
from pathlib import Path


def git_commit() -> str | None:
    """The commit of the running source tree, with `-dirty` for local changes outside results. Without a checkout:
    `$COMT_COMMIT` (set by `make gpu` for trees from an archive), else the commit that pip installed, else None."""
    folder = Path(__file__).resolve().parent.parent
    if not (folder / ".git").exists():
        return os.environ.get("COMT_COMMIT") or _installed_from()

    def git(*words: str) -> str:
        command = ["git", "-C", str(folder), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changed else commit


def _installed_from() -> str | None:
    """The commit in pip's record of the installation (PEP 610)."""
    try:
        noted = json.loads(metadata.distribution("comt").read_text("direct_url.json") or "{}")
        return str(noted["vcs_info"]["commit_id"])[:12]
    except (metadata.PackageNotFoundError, KeyError, TypeError, ValueError, OSError):
        return None
