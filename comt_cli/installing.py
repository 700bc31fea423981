"""How a package that is missing is installed: into the environment that runs this, by a command that can be pasted."""

from __future__ import annotations

import importlib.machinery
import os
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

PACKAGE = "comt"


def install_extra(extra: str) -> str:
    """The command for an extra of this project: from its own folder where it is installed from one, else what the
    extra asks for by name. No index is ever asked for a package called like this one."""
    folder = _project_folder()
    if folder is not None:
        return f"{_pip()} install -e {shlex.quote(f'{folder}[{extra}]')}"
    return f"{_pip()} install {' '.join(shlex.quote(each) for each in requirements_of(extra))}"


def install_package(*requirements: str) -> str:
    """The command for packages by name."""
    return f"{_pip()} install {' '.join(shlex.quote(each) for each in requirements)}"


def requirements_of(extra: str) -> list[str]:
    """What an extra of the installed package asks for; the extra's name itself where that is not known."""
    try:
        stated = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        stated = []
    marked = re.compile(rf"""^(?P<wanted>[^;]+);.*extra\s*==\s*['"]{re.escape(extra)}['"]""")
    return [found["wanted"].strip() for each in stated if (found := marked.match(each))] or [extra]


def _pip() -> str:
    python = shlex.quote(_short(Path(sys.executable)))
    # On the path alone: setuptools takes a look for pip by `importlib.util` for pip being started, and from then on the
    # process has the standard library's distutils, with which neither setuptools nor torch's compiler can be imported.
    find = importlib.machinery.PathFinder.find_spec
    if find("pip") is None and find("ensurepip") is None:
        return f"uv pip --python {python}"
    return f"{python} -m pip"


def _project_folder() -> str | None:
    """The folder of the project that this module is run from, `.` where one stands in it; None where there is none."""
    folder = Path(__file__).resolve().parent.parent
    return _short(folder) if (folder / "pyproject.toml").is_file() else None


def _short(path: Path) -> str:
    """A path as short as it can be said from here: relative where it lies below the current folder."""
    try:
        here = Path.cwd()
    except OSError:  # removed
        return str(path)
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)
