"""How this process came to be: by hand, by torchrun, or as the child of one that hands out work. Torch-free."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys

from comt_cli.errors import UserError


def launched_by_torchrun() -> bool:
    """Whether a launcher has already started one process per device."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_main_process() -> bool:
    """Whether this process prints and writes tables: it was started by hand, or is the first of torchrun's."""
    return not launched_by_torchrun() or os.environ["RANK"] == "0"


def check_device(device_name: str | None, processes: int) -> None:
    """Several processes need a device each.

    Raises:
        UserError: `device_name` names a single one.
    """
    if processes > 1 and device_name is not None and ":" in device_name:
        raise UserError(
            f"--device {device_name} names one device for {processes} processes",
            "Say --device cuda, and choose the GPUs with CUDA_VISIBLE_DEVICES.",
        )


def die_with_parent() -> None:
    """Linux: have the system end this process when its parent is killed; an orphan would keep its run locked."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it was killed before
        os._exit(1)
