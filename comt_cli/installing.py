"""Commands that install missing packages into the running environment."""

from __future__ import annotations

import importlib.machinery
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path


def install_extra(extra: str) -> str:
    """The command that installs an extra of this project: from the project's folder if there is one, else the extra's
    requirements by name. It never asks an index for a package with this project's name."""
    folder = Path(__file__).resolve().parent.parent
    if (folder / "pyproject.toml").is_file():
        return f"{_pip()} install -e {shlex.quote(f'{folder}[{extra}]')}"
    return install_package(*requirements_of(extra))


def install_package(*requirements: str) -> str:
    """The command that installs packages by name."""
    return f"{_pip()} install {shlex.join(requirements)}"


def requirements_of(extra: str) -> list[str]:
    """The requirements of an extra of the installed package; the extra's name if they are unknown."""
    stated = metadata.requires("comt") or []
    marked = re.compile(rf"""^(?P<wanted>[^;]+);.*extra\s*==\s*['"]{re.escape(extra)}['"]""")
    return [found["wanted"].strip() for each in stated if (found := marked.match(each))] or [extra]


def _pip() -> str:
    python = shlex.quote(sys.executable)
    # Not `importlib.util.find_spec`: setuptools takes that for a start of pip and leaves the standard library's
    # distutils in the process, with which neither setuptools nor torch's compiler can be imported.
    find = importlib.machinery.PathFinder.find_spec
    if find("pip") is None and find("ensurepip") is None:
        return f"uv pip --python {python}"
    return f"{python} -m pip"
