"""Devices by name and class, and the installed build of PyTorch. A class is a maker's CPUs with the same widest
instruction set, or GPUs of one compute capability. Imports no torch, which takes seconds."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "unknown"  # class of a device that cannot be classified, without other members
MOST_RATIO = 4  # measurements apply to up to so many times more or fewer threads or tokens
_CPUINFO = Path("/proc/cpuinfo")
_CLASSES = {
    "Intel AMX": {"GenuineIntel", "amx_tile", "amx_bf16"},
    "Intel AVX-512": {"GenuineIntel", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "AMD AVX-512": {"AuthenticAMD", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "Intel AVX2": {"GenuineIntel", "avx2", "fma"},
    "AMD AVX2": {"AuthenticAMD", "avx2", "fma"},
}
"""Maker and flags of each class, the widest first."""


@dataclass(frozen=True)
class Device:
    """A device that measures or computes. `type` is `cpu`, `cuda` or `mps`; `name` is its own name; `device_class` is
    maker and instruction set, `AMD AVX-512`, or a GPU's `sm_90`; `threads` is 0 on a GPU."""

    type: str
    name: str
    device_class: str
    threads: int = 0

    def __str__(self) -> str:
        return f"{self.name}, {self.threads} thread{'s' if self.threads > 1 else ''}" if self.threads else self.name

    @classmethod
    def of(cls, device_type: str, text: str, device_class: str) -> Device:
        """Device whose `str` is `text`. Raises `ValueError` for a CPU without a number of threads."""
        if device_type != "cpu":
            return cls(device_type, text, device_class)
        name, _, threads = text.rpartition(", ")
        return cls(device_type, name, device_class, int(threads.split()[0]))

    def says_about(self, other: Device) -> bool:
        """Whether its measurements apply to `other`: a device of the same class with a similar number of threads."""
        alike = (self.type, self.device_class) == (other.type, other.device_class)
        known = self.name == other.name or self.device_class != UNKNOWN
        return alike and known and close(self.threads, other.threads)


def close(one: int, other: int) -> bool:
    """Whether neither is more than `MOST_RATIO` times the other."""
    return max(one, other) <= MOST_RATIO * min(one, other)


def processor_name() -> str:
    """Model name of the processor from the kernel, or the architecture."""
    name = described().get("model name", "")
    return name if name and name.lower() != "unknown" else f"{platform.machine()} CPU"


def processor_class() -> str:
    """Maker and widest vector or matrix instructions of this processor: `Intel AMX`, `AMD AVX2`. Unknown if
    `ATEN_CPU_CAPABILITY` restricts PyTorch."""
    if os.environ.get("ATEN_CPU_CAPABILITY"):
        return UNKNOWN
    entries = described()
    has = {entries.get("vendor_id", ""), *entries.get("flags", "").split()}
    return next((name for name, needs in _CLASSES.items() if needs <= has), UNKNOWN)


def described() -> dict[str, str]:
    """Features of the first processor that decide how code is compiled for it; empty outside Linux."""
    wanted = ("vendor_id", "model name", "flags", "Features", "CPU implementer", "CPU part")
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    entries = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    return {name: text for name, text in entries.items() if name in wanted}


def built_for(kind: str) -> bool | None:
    """Whether PyTorch was built for `cuda` or `hip`; None if its files do not state it."""
    found = re.search(rf"^{kind}\b[^=\n]*=\s*(.+)$", torch_build(), re.MULTILINE)
    return None if found is None else found[1].strip() != "None"


@functools.cache
def torch_build() -> str:
    """Content of `torch/version.py`: version, commit, and CUDA or ROCm version; "" if there is none."""
    try:
        found = importlib.util.find_spec("torch")
        return Path(found.origin or "").with_name("version.py").read_text(encoding="utf-8") if found else ""
    except (ImportError, OSError, ValueError):
        return ""
