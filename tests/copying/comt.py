"""`comt` with the toy task: what it takes for a task's two files to be found is that they are there."""

from __future__ import annotations

from pathlib import Path

import comt_cli.tasks
import comt_cli.training.tasks

HERE = Path(__file__).resolve().parent
comt_cli.tasks.__path__.append(str(HERE / "tasks"))
comt_cli.training.tasks.__path__.append(str(HERE / "runs"))

if __name__ == "__main__":  # processes that train import this file too
    from comt_cli.app import main

    main()
