"""A home, caches and a working folder of the suite's own, for every test and for every process that one starts.

Imported before anything else: libraries look at these variables when they are imported, and processes inherit them. The
folders are made once per session and shared by pytest's workers, so that data is prepared, and kernels compiled, once.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

SESSION = "COMT_TEST_FOLDER"
"""Where the session's folders are: set by the process that makes them, read by its workers."""
OWN = {
    "HOME": "home",
    "XDG_CACHE_HOME": "home/.cache",
    "XDG_CONFIG_HOME": "home/.config",
    "XDG_DATA_HOME": "home/.local/share",
    "XDG_STATE_HOME": "home/.local/state",
    "COMT_CACHE": "cache",
    "MPLCONFIGDIR": "home/.config/matplotlib",
    "TORCH_HOME": "home/.cache/torch",
    "HF_HOME": "home/.cache/huggingface",
    "TRITON_CACHE_DIR": "home/.triton",
    "TORCHINDUCTOR_CACHE_DIR": "home/.cache/torchinductor",
    "WANDB_DIR": "home/wandb",
}
"""Variables, and the folder below the session's that each names."""
UNSET = (
    *("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "HF_DATASETS_CACHE", "XDG_RUNTIME_DIR"),
    "PYTHONDONTWRITEBYTECODE",
)
"""Variables that would lead around those; and one with which each of hundreds of commands compiles the package anew."""


def isolate() -> Path | None:
    """Point this process, and those that it starts, at the session's folders, and stand in the working one.

    Returns the folder if this process made it, and is to remove it.
    """
    made = None
    if SESSION not in os.environ:
        made = Path(tempfile.mkdtemp(prefix="comt-tests-"))
        os.environ[SESSION] = str(made)
    folder = Path(os.environ[SESSION])
    for variable, name in OWN.items():
        path = folder / name
        path.mkdir(parents=True, exist_ok=True)
        os.environ[variable] = str(path)
    for variable in UNSET:
        os.environ.pop(variable, None)
    return made


def working_folder() -> Path:
    """The folder that tests stand in, where none of them chooses another."""
    path = Path(os.environ[SESSION]) / "work"
    path.mkdir(exist_ok=True)
    return path


def cache_folder() -> Path:
    """The session's COMT_CACHE."""
    return Path(os.environ[SESSION]) / OWN["COMT_CACHE"]


def remove(made: Path | None) -> None:
    """Remove what `isolate` made."""
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)


ABOUT_CODE = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning", "SyntaxWarning")
"""These say that a piece of code should change."""
INSTALLED = ("site-packages", "dist-packages")


def ignored_warnings() -> list[str]:
    """Lines for pytest's `filterwarnings`, to stand below its "error".

    Python files a warning under the module whose code is meant: what a caller should change, a library files under its
    caller (`stacklevel`). What is filed under an installed package is thus for its authors; it comes and goes with the
    versions of Python and of that package. What is filed under Python's own modules stays an error: it is about use.
    """
    folders = [Path(folder) for folder in sys.path if Path(folder).name in INSTALLED and Path(folder).is_dir()]
    names = {path.name.partition(".")[0] for folder in folders for path in folder.iterdir()} - {"comt_cli"}
    packages = "|".join(sorted(filter(str.isidentifier, names)))
    # The parser, whose SyntaxWarnings come when a file is first compiled, knows no modules, only paths.
    theirs = rf"({packages})(\.|\Z)|.*/({'|'.join(INSTALLED)})/"
    about_python = r"ignore:.*\bPython \d"  # of any kind: "Guards may run slower on Python 3.13.0"
    return [*(f"ignore::{category}:{theirs}" for category in ABOUT_CODE), f"{about_python}::{theirs}"]
