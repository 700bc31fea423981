"""The device that a verb would use, found out without torch, whose import takes seconds.

Of CUDA's devices the driver knows as much as torch. Of others (AMD's and Apple's) torch is asked.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from comt_cli.errors import UserError
from comt_cli.kernels.processors import built_for, processor_name
from comt_cli.training.chips import CHIPS, Chip

_NAME = re.compile(r"(cuda|mps|cpu)(?::(\d+))?")


@dataclass(frozen=True)
class Hardware:
    """`kind` is cpu, cuda or mps; `count` how many there are to train on; `chip`: it is planned for and not here."""

    kind: str
    name: str
    count: int
    chip: Chip | None = None

    @property
    def words(self) -> str:
        """`AMD EPYC`; `8 x H100, not here`."""
        return self.name if self.chip is None else f"{self.count} x {self.name}, not here"


def planned_hardware(name: str, count: int) -> Hardware:
    """So many of one of `CHIPS`, whatever its case and spaces. Raises `UserError` where there is none."""
    words = {chip.lower().replace(" ", ""): chip for chip in CHIPS}
    chip = words.get(re.sub("[ _-]", "", name.lower()))
    if chip is None:
        raise UserError(f"--plan-for {name}: nothing is known of this device", f"There are {', '.join(CHIPS)}.")
    return Hardware("cuda", chip, count, CHIPS[chip])


def check_device_name(device: str | None) -> None:
    """Refuse a device that is certainly not here, before anything slow is begun. Raises `UserError`."""
    if device is None:
        return
    found = _NAME.fullmatch(device)
    if found is None:
        raise UserError(f"--device {device}: there is no such device", "Use cuda, cuda:1, mps or cpu.")
    if found[1] == "mps" and sys.platform != "darwin":
        raise UserError("--device mps: Apple's MPS is not available here", "Use --device cpu.")
    if found[1] == "cuda":
        names = cuda_names()
        if names is not None and int(found[2] or 0) >= len(names):
            raise UserError(f"--device {device}: {len(names)} CUDA devices are visible here", "comt doctor says why.")


def check_count(where: Hardware, processes: int) -> None:
    """Processes that share a run take a GPU each; on the CPU any number can. Raises `UserError`."""
    if where.kind == "cuda" and processes > where.count:
        raise UserError(f"--gpus {processes}: {where.count} CUDA devices are visible here", "comt doctor says why.")


def hardware(device: str | None) -> Hardware:
    """The device of that name, or the best there is. Raises `UserError` where there is no such device here."""
    check_device_name(device)
    gpus: Sequence[str] | None = cuda_names() if device is None or device.startswith("cuda") else []
    if gpus is None or (sys.platform == "darwin" and device in (None, "mps")):
        return _as_torch_says(device)
    if gpus:
        _, _, index = (device or "cuda").partition(":")
        return Hardware("cuda", gpus[int(index or 0)], 1 if index else len(gpus))
    return Hardware("cpu", processor_name(), 1)


def _as_torch_says(device: str | None) -> Hardware:
    import torch

    from comt_cli.training.devices import device_name, pick_device

    chosen = pick_device(device)
    if chosen.type == "cuda":
        named = device is not None and ":" in device
        return Hardware("cuda", device_name(chosen), 1 if named else torch.cuda.device_count())
    return Hardware(chosen.type, processor_name(), 1)


@functools.cache
def cuda_names() -> tuple[str, ...] | None:
    """The CUDA devices that this process may use; None where the driver cannot be asked and torch might know some."""
    if built_for("hip") or "torch" in sys.modules:
        return None if built_for("hip") else _known_to_torch()
    if built_for("cuda") is False or sys.platform == "darwin":
        return ()
    if built_for("cuda") is None or sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return None
    return _known_to_driver()


def _known_to_torch() -> tuple[str, ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))


def _known_to_driver() -> tuple[str, ...] | None:
    """The driver itself respects `CUDA_VISIBLE_DEVICES`."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return ()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return ()
        names = []
        for index in range(count.value):
            if driver.cuDeviceGetName(name, len(name), index):
                return None
            names.append(name.value.decode(errors="replace"))
    except OSError:
        return ()  # no driver
    except AttributeError:
        return None
    return tuple(names)
