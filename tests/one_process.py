"""Commands one after the other in one process that is not pytest's: starting one for each takes most of their time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = """
import contextlib, io, json, sys
from comt_cli.__main__ import main
found = []
for arguments in json.loads(sys.argv[1]):
    said, sys.argv, status = io.StringIO(), ["comt", *arguments], 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as stop:
            status = stop.code or 0
    found.append([status, said.getvalue(), sorted(sys.modules)])
print(json.dumps(found))
"""


def answers(
    commands: Sequence[Sequence[str]], folder: Path, *, prefix: Sequence[str] = (), before: str = ""
) -> list[tuple[int, str, set[str]]]:
    """The exit status of every `comt ARGUMENTS`, what it said, and what it and those before it imported. `prefix`
    starts the process, which first does what `before` says."""
    command = [*prefix, sys.executable, "-c", before + CODE, json.dumps(commands)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [(status, said, set(modules)) for status, said, modules in json.loads(done.stdout.splitlines()[-1])]
