"""What is said where a package is missing can be pasted, and asks no index for a package called like this one."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from comt_cli import installing
from comt_cli.installing import install_extra, requirements_of

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ["gguf", "gpu", "slurm", "tensorboard", "wandb"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_installed_from_the_projects_own_folder(extra):
    python, *words = shlex.split(install_extra(extra))
    assert Path(python) == Path(sys.executable), "into the environment that runs this"
    assert words == ["-m", "pip", "install", "-e", f"{ROOT}[{extra}]"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_without_a_folder_what_the_extra_asks_for_is_installed_by_name(extra, tmp_path, monkeypatch):
    monkeypatch.setattr(installing, "__file__", str(tmp_path / "a" / "installing.py"))
    stated = ["rich>=13", *(f'{name}-package>=1; sys_platform == "linux" and extra == "{name}"' for name in EXTRAS)]
    monkeypatch.setattr(installing.metadata, "requires", lambda name: stated)
    assert requirements_of(extra) == [f"{extra}-package>=1"]
    assert shlex.split(install_extra(extra))[-1] == f"{extra}-package>=1"
    assert "comt[" not in install_extra(extra)


def test_a_hint_leaves_the_compilers_of_this_process_usable():
    """Looking for pip must not turn setuptools' own distutils off, or torch can compile nothing afterwards."""
    code = "from comt_cli.installing import install_extra; install_extra('wandb'); import distutils, setuptools"
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
