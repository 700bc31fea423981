"""Devices by name and by class (CPUs of one vendor with the same widest instruction set, GPUs of one compute
capability), and the build of PyTorch that is installed here. Torch-free: importing it takes seconds."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "unknown"
"""The class of a device that cannot be classified, as all but x86's; it is no class: nothing else belongs to it."""
MOST_RATIO = 4
"""Measurements say something about up to so many times as many threads, tokens and hidden channels, or as few. With
many more threads memory bandwidth and the start of threads weigh more than arithmetic does."""
_CPUINFO = Path("/proc/cpuinfo")
_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}
_INSTRUCTION_SETS = {
    "AMX": {"amx_tile", "amx_bf16"},
    "AVX-512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "AVX2": {"avx2", "fma"},
    "x86_64": set[str](),
}
"""The widest first: the flags of a processor that has it. Those of AVX-512 and AVX2 are what PyTorch asks for."""
PRETENDED = {"default": ("x86_64", "x86-64"), "avx2": ("AVX2", "haswell"), "avx512": ("AVX-512", "skylake-avx512")}
"""By `ATEN_CPU_CAPABILITY`: the widest instructions that PyTorch then uses, and the older processor that the C++
kernels are compiled for (`cpu.build`). PyTorch ignores other values."""


@dataclass(frozen=True)
class Device:
    """A device that measures or computes.

    `type` is `cpu`, `cuda` or `mps`; `name` what it calls itself, which in virtual machines may stand for different
    processors; `device_class` vendor and instruction set, `AMD AVX-512`, or a GPU's `sm_90`; `threads` 0 on a GPU.
    """

    type: str
    name: str
    device_class: str
    threads: int = 0

    def __str__(self) -> str:
        return f"{self.name}, {self.threads} thread{'s' if self.threads > 1 else ''}" if self.threads else self.name

    @classmethod
    def of(cls, device_type: str, text: str, device_class: str) -> Device:
        """The device whose `str` is `text`. Raises `ValueError` for a CPU without a number of threads."""
        if device_type != "cpu":
            return cls(device_type, text, device_class)
        name, _, threads = text.rpartition(", ")
        return cls(device_type, name, device_class, int(threads.split()[0]))

    def says_about(self, other: Device) -> bool:
        """Whether its measurements say something about `other`: one of its class, with about as many threads."""
        alike = (self.type, self.device_class) == (other.type, other.device_class)
        known = self.name == other.name or self.device_class != UNKNOWN
        return alike and known and close(self.threads, other.threads)


def close(one: int, other: int) -> bool:
    """Whether neither is more than `MOST_RATIO` times the other."""
    return max(one, other) <= MOST_RATIO * min(one, other)


def processor_name() -> str:
    """The processor's model name from the kernel, or the architecture where it does not say. `AMD EPYC as AVX2` where
    `ATEN_CPU_CAPABILITY` has it compute as an older one."""
    name = _entries().get("model name", "")
    name = name if name and name.lower() != "unknown" else f"{platform.machine()} CPU"
    has, uses = _instruction_sets()
    return name if has == uses else f"{name} as {uses}"


def processor_class() -> str:
    """This processor's vendor and the widest vector or matrix instructions that it may use: `Intel AMX`, `AMD AVX2`.
    With `ATEN_CPU_CAPABILITY` it is in the class of the older processor that it then computes as."""
    vendor, (_, uses) = _entries().get("vendor_id"), _instruction_sets()
    return f"{_VENDORS.get(vendor, vendor)} {uses}" if vendor and uses else UNKNOWN


def described() -> dict[str, str]:
    """What distinguishes processors for which different code would be compiled: the features that the kernel lists."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return {name: text for name, text in _entries().items() if name in wanted}


def _instruction_sets() -> tuple[str, str]:
    """The widest instructions that this processor has, and the widest that it may use; empty where that is unknown."""
    flags = {*_entries().get("flags", "").split()}
    if platform.machine() != "x86_64" or not flags:
        return "", ""
    has = next(name for name, needs in _INSTRUCTION_SETS.items() if needs <= flags)
    pretended, _ = PRETENDED.get(os.environ.get("ATEN_CPU_CAPABILITY", ""), (has, ""))
    return has, max(has, pretended, key=[*_INSTRUCTION_SETS].index)  # the narrower


def _entries() -> dict[str, str]:
    """What Linux says about the first processor; nothing elsewhere."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}


@functools.cache
def torch_build() -> str:
    """The text of `torch/version.py`, which names the version, the commit and the CUDA or ROCm it was built for; "" if
    there is no PyTorch, or it does not say."""
    try:
        found = importlib.util.find_spec("torch")
        if found is None or found.origin is None:
            return ""
        return Path(found.origin).with_name("version.py").read_text(encoding="utf-8")
    except (ImportError, OSError, ValueError):
        return ""


def built_for(kind: str) -> bool | None:
    """Whether PyTorch was built for `cuda`, or `hip`; None if its files do not say."""
    said = re.search(rf"^{kind}\b[^=\n]*=\s*(.+)$", torch_build(), re.MULTILINE)
    return None if said is None else said[1].strip() != "None"
