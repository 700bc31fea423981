"""Processes that cannot import comt, as on a machine without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any


def found_below(root: Path) -> Any:
    """What `loading.py` finds of the folders below `root`. Without site packages no .pth file puts comt on its path;
    the packages' folder is an argument."""
    own = {"HF_HOME": str(root / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    path, packages = Path(__file__).with_name("loading.py"), sysconfig.get_path("purelib")
    command = [sys.executable, "-I", "-S", path, root, packages]
    subprocess.run(command, env={**os.environ, **own}, check=True, cwd=root, timeout=300)
    return json.loads((root / "found.json").read_text())
