"""Which warnings fail no test: those about other people's code, and those about the interpreter.

Every other warning is an error (pyproject.toml), those that a library issues about a call of ours included.
"""

from __future__ import annotations

import sys
from pathlib import Path

ABOUT_CODE = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning", "SyntaxWarning")
"""These say that a piece of code should change."""
INSTALLED = ("site-packages", "dist-packages")


def rules() -> list[str]:
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
