"""Find the device that a verb would use, without importing torch, which takes seconds: CUDA's driver is queried; only
AMD's and Apple's devices need torch. Data of GPUs are from data sheets."""

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
    """Data of a GPU: dense bf16 FLOP/s, fp32 FLOP/s, and bytes of memory."""

    bf16_flops: float
    fp32_flops: float
    memory: float


# From NVIDIA's data sheets and, for GeForce, white papers of the architectures (products accumulated in fp32). Where
# they print FLOP/s "with sparsity", these are half. B200: one of the eight GPUs of an HGX B200.
CHIPS = {
    "B200": Chip(2250e12, 80e12, 180e9),
    "H200": Chip(989.5e12, 67e12, 141e9),
    "H100 PCIe": Chip(756e12, 51e12, 80e9),
    "H100 NVL": Chip(835e12, 60e12, 94e9),
    "H100": Chip(989.5e12, 67e12, 80e9),
    "A100 80GB": Chip(312e12, 19.5e12, 80e9),
    "A100 40GB": Chip(312e12, 19.5e12, 40e9),
    "L40S": Chip(362e12, 91.6e12, 48e9),
    "A10G": Chip(70e12, 31.2e12, 24e9),
    "RTX 4090": Chip(165.2e12, 82.6e12, 24e9),
    "RTX 3090": Chip(71e12, 35.6e12, 24e9),
}
"""Devices that are missing here have no MFU."""
_OTHER_CHIPS = re.compile(r"H200 NVL|MIG|Laptop|Max-Q| (Ti|D|SUPER)\b")
"""Suffixes of slower or faster devices with a name above."""


def chip_of(device: str) -> str | None:
    """The name in `CHIPS` of a device, given its driver's name, which has all its words (`NVIDIA A100-SXM4-80GB`); None
    if it is missing there."""
    words = set(re.split("[ -]", device))
    return None if _OTHER_CHIPS.search(device) else next((chip for chip in CHIPS if words >= {*chip.split()}), None)


@dataclass(frozen=True)
class Hardware:
    """Devices to train on: `kind` is cpu, cuda or mps, `count` their number. `chip` is set if they are planned for and
    not in this machine."""

    kind: str
    name: str
    count: int
    chip: Chip | None = None

    @property
    def words(self) -> str:
        """The name for output: `AMD EPYC`; `8 x H100, not here`."""
        return self.name if self.chip is None else f"{self.count} x {self.name}, not here"


def planned_hardware(name: str, count: int) -> Hardware:
    """`count` devices of one of `CHIPS`, ignoring case and spaces; `a100` is the one with 80 GB. Raises `UserError` for
    an unknown name."""
    words = {"a100": "A100 80GB"} | {chip.lower().replace(" ", ""): chip for chip in CHIPS}
    chip = words.get(re.sub("[ _-]", "", name.lower()))
    if chip is None:
        raise UserError(f"--plan-for {name}: this device is unknown", f"valid: {', '.join(CHIPS)}")
    return Hardware("cuda", chip, count, CHIPS[chip])


def too_few(option: str, count: int) -> UserError:
    """The error if an option asks for more CUDA devices than are visible."""
    return UserError(f"{option}: {count} CUDA devices are visible here", "comt doctor shows the reason.")


def check_device_name(device: str | None) -> None:
    """Raise `UserError` for a device that certainly does not exist, before slow work begins."""
    if device is None:
        return
    found = re.fullmatch(r"(cuda|mps|cpu)(?::(\d+))?", device)
    if found is None or (found[1] == "mps" and not has_mps()):
        raise UserError(f"--device {device}: there is no such device here", "Use cuda, cuda:1, mps or cpu.")
    if found[1] == "cuda" and int(found[2] or 0) >= (count := len(cuda_names())):
        raise too_few(f"--device {device}", count)


def check_count(where: Hardware, processes: int) -> None:
    """Check that each process of a run can have its own GPU; a CPU takes any number. Raises `UserError`."""
    if where.kind == "cuda" and processes > where.count:
        raise too_few(f"--gpus {processes}", where.count)


def hardware(device: str | None) -> Hardware:
    """The device of that name, by default the best one. Raises `UserError` if it does not exist here."""
    check_device_name(device)
    kind, _, index = (device or "").partition(":")
    if gpus := cuda_names() if kind in ("", "cuda") else ():
        return Hardware("cuda", gpus[int(index or 0)], 1 if index else len(gpus))
    if not kind and has_mps():
        kind = "mps"
    return Hardware(kind or "cpu", processor_name(), 1)


def has_mps() -> bool:
    """Whether there is an Apple GPU."""
    if sys.platform == "darwin":
        import torch

        return torch.backends.mps.is_available()
    return False


@functools.cache
def cuda_names() -> tuple[str, ...]:
    """The CUDA devices that this process may use, from the driver or, if it cannot be queried, from torch."""
    # The driver respects CUDA_VISIBLE_DEVICES, except if it is empty.
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
