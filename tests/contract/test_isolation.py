"""The suite touches nothing of the user's: a session of it leaves their folders as they were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import isolation
import platformdirs

from comt_cli.files import cache_folder

ROOT = Path(__file__).parents[2]
WROTE_INTO_CACHES = [
    "tests/contract/test_isolation.py::test_every_folder_is_the_sessions",
    "tests/unit/commands/test_outcome.py::test_an_ablation_is_drawn_when_its_numbers_change_and_stays_where_its_table_is_kept",
]


def test_every_folder_is_the_sessions(tmp_path):
    """Here, and in a process that a test starts."""
    session = Path(os.environ[isolation.SESSION])
    code = (
        "import os, pathlib, platformdirs, sys; from comt_cli.files import cache_folder;"
        "print(pathlib.Path.home(), cache_folder(), platformdirs.user_cache_path('comt'), os.getcwd(), sep='\\n')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    here = [Path.home(), cache_folder(), platformdirs.user_cache_path("comt"), Path.cwd()]
    for path in [*here, *map(Path, done.stdout.split())]:
        assert path.is_relative_to(session), path
    assert not Path.cwd().is_relative_to(ROOT)


def test_a_session_leaves_the_users_folders_as_they_were(tmp_path):
    home, cache, here = (tmp_path / name for name in ("home", "cache", "here"))
    for folder in (home, cache, here):
        folder.mkdir()
    environment = {key: value for key, value in os.environ.items() if key not in {*isolation.OWN, isolation.SESSION}}
    environment |= {"HOME": str(home), "COMT_CACHE": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["CXX"] = "none"  # compiling the kernels into another session's cache takes longer than all the rest
    tests = [str(ROOT / test) for test in WROTE_INTO_CACHES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT)]
    before = status_of_the_tree()
    done = subprocess.run([*command, "-c", str(ROOT / "pyproject.toml"), *tests], cwd=here, env=environment,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    left = [path for folder in (home, cache, here) for path in folder.rglob("*")]
    assert left == []
    assert status_of_the_tree() == before


def status_of_the_tree() -> set[Path]:
    """Files that the program writes where it is not told otherwise."""
    return {path for name in ("runs", "results") for path in (ROOT / name).rglob("*")}
