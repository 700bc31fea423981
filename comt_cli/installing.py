"""How a package that is missing is installed: into the environment that runs this, by a command that can be pasted."""

from __future__ import annotations

import importlib.machinery
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path


def install_extra(extra: str) -> str:
    """The command for an extra of this project: from its own folder where it is installed from one, else what the
    extra asks for by name. No index is ever asked for a package called like this one."""
    folder = Path(__file__).resolve().parent.parent
    if (folder / "pyproject.toml").is_file():
        return f"{_pip()} install -e {shlex.quote(f'{folder}[{extra}]')}"
    return install_package(*requirements_of(extra))


def install_package(*requirements: str) -> str:
    """The command for packages by name."""
    return f"{_pip()} install {shlex.join(requirements)}"


def requirements_of(extra: str) -> list[str]:
    """The requirements of an extra of the installed package; the extra's name itself where they are not known."""
    stated = metadata.requires("comt") or []
    marked = re.compile(rf"""^(?P<wanted>[^;]+);.*extra\s*==\s*['"]{re.escape(extra)}['"]""")
    return [found["wanted"].strip() for each in stated if (found := marked.match(each))] or [extra]


def _pip() -> str:
    python = shlex.quote(sys.executable)
    # On the path alone: setuptools takes a look for pip by `importlib.util` for pip being started, and from then on the
    # process has the standard library's distutils, with which neither setuptools nor torch's compiler can be imported.
    find = importlib.machinery.PathFinder.find_spec
    if find("pip") is None and find("ensurepip") is None:
        return f"uv pip --python {python}"
    return f"{python} -m pip"
