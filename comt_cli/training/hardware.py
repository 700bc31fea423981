"""The device that a verb would use, found out without torch, whose import takes seconds: CUDA's driver is asked, and
torch of AMD's and Apple's devices. GPUs after their makers' data sheets."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import sys
from dataclasses import dataclass

from comt_cli.errors import UserError
from comt_cli.kernels.processors import built_for, processor_name


@dataclass(frozen=True)
class Chip:
    """A GPU after its maker's data sheet: dense FLOP/s in bf16, FLOP/s in fp32, and bytes of memory."""

    bf16_flops: float
    fp32_flops: float
    memory: float


CHIPS = {
    "H200": Chip(989.5e12, 67e12, 141e9),
    "H100 PCIe": Chip(756e12, 51e12, 80e9),
    "H100 NVL": Chip(835e12, 60e12, 94e9),
    "H100": Chip(989.5e12, 67e12, 80e9),
    "A100": Chip(312e12, 19.5e12, 80e9),
    "L40S": Chip(362e12, 91.6e12, 48e9),
    "A10G": Chip(70e12, 31.2e12, 24e9),
    "RTX 4090": Chip(165.2e12, 82.6e12, 24e9),
    "RTX 3090": Chip(71e12, 35.6e12, 24e9),
}
"""A device that is not here gets no MFU rather than a wrong one. A100: the one with 80 GB."""
_OTHER_CHIPS = re.compile(r"H200 NVL|MIG|Laptop|Max-Q| (Ti|D|SUPER)\b")
"""Suffixes of other, slower or faster devices of a name above."""


def chip_of(device: str) -> str | None:
    """The one of `CHIPS` that a device is, by its driver's name; None of others."""
    return None if _OTHER_CHIPS.search(device) else next((chip for chip in CHIPS if chip in device), None)


@dataclass(frozen=True)
class Hardware:
    """`kind` is cpu, cuda or mps; `count` how many there are; `chip`: it is planned for and not here."""

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


def too_few(option: str, count: int) -> UserError:
    """The error where an option asks for more CUDA devices than there are."""
    return UserError(f"{option}: {count} CUDA devices are visible here", "comt doctor says why.")


def check_device_name(device: str | None) -> None:
    """Refuse a device that is certainly not here, before anything slow is begun. Raises `UserError`."""
    if device is None:
        return
    found = re.fullmatch(r"(cuda|mps|cpu)(?::(\d+))?", device)
    if found is None or (found[1] == "mps" and not has_mps()):
        raise UserError(f"--device {device}: there is no such device here", "Use cuda, cuda:1, mps or cpu.")
    if found[1] == "cuda" and int(found[2] or 0) >= (count := len(cuda_names())):
        raise too_few(f"--device {device}", count)


def check_count(where: Hardware, processes: int) -> None:
    """Processes that share a run take a GPU each; on the CPU any number can. Raises `UserError`."""
    if where.kind == "cuda" and processes > where.count:
        raise too_few(f"--gpus {processes}", where.count)


def hardware(device: str | None) -> Hardware:
    """The device of that name, or the best there is. Raises `UserError` where there is no such device here."""
    check_device_name(device)
    kind, _, index = (device or "").partition(":")
    if gpus := cuda_names() if kind in ("", "cuda") else ():
        return Hardware("cuda", gpus[int(index or 0)], 1 if index else len(gpus))
    if not kind and has_mps():
        kind = "mps"
    return Hardware(kind or "cpu", processor_name(), 1)


def has_mps() -> bool:
    """Whether there is a device of Apple's."""
    if sys.platform == "darwin":
        import torch

        return torch.backends.mps.is_available()
    return False


@functools.cache
def cuda_names() -> tuple[str, ...]:
    """The CUDA devices that this process may use, as the driver knows them, and where it cannot be asked, torch."""
    # The driver itself respects CUDA_VISIBLE_DEVICES, except where it is empty.
    is_linux = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    if "torch" not in sys.modules and not built_for("hip"):
        if built_for("cuda") is False or sys.platform == "darwin" or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            return ()
        if built_for("cuda") and is_linux and (names := _known_to_driver()) is not None:
            return names
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(torch.cuda.get_device_name(index) for index in range(count))


def _known_to_driver() -> tuple[str, ...] | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    number, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(number)):
        return ()
    names = []
    for index in range(number.value):
        if driver.cuDeviceGetName(name, len(name), index):
            return None
        names.append(name.value.decode(errors="replace"))
    return tuple(names)
