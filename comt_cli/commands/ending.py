"""How a process that torchrun started ends. Imports nothing heavy."""

from __future__ import annotations

import os
import sys


def end_of_torchrun(code: str | int | None) -> None:
    """End this process with the status of a `SystemExit` of `code`, if it is one of torchrun's that has trained.

    Its threads outlive the training: see `end_process`. Any other process is left to its interpreter.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ and "torch.distributed" in sys.modules:
        from comt_cli.training.processes import end_process

        end_process(code if isinstance(code, int) else int(code is not None))
