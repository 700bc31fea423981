"""Devices by name and by class. Measurements on one device say something about the others of its class: CPUs of one
vendor with the same widest instruction set, GPUs of one compute capability. Torch-free."""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

UNKNOWN = "unknown"
"""The class of a device that cannot be classified; it is no class: nothing else belongs to it."""
MOST_THREADS_RATIO = 4
"""Measurements say something about up to so many times as many threads, or as few. A kernel and the operations that it
replaces share their work among threads alike, by rows, so a ratio measured with 2 threads also holds for 4 or 8. With
many more, memory bandwidth and the start of threads weigh more than arithmetic does: then it has to be measured."""
_CPUINFO = Path("/proc/cpuinfo")
_VENDORS = {
    **{"GenuineIntel": "Intel", "AuthenticAMD": "AMD"},
    **{"0x41": "Arm", "0x46": "Fujitsu", "0x4e": "NVIDIA", "0x51": "Qualcomm", "0x61": "Apple", "0xc0": "Ampere"},
}
"""By x86's `vendor_id` and by the number of ARM's `CPU implementer`."""
_INSTRUCTION_SETS = {
    "x86_64": {
        "AMX": {"amx_tile", "amx_bf16"},
        "AVX-512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
        "AVX2": {"avx2", "fma"},
    },
    "aarch64": {"SVE": {"sve"}, "NEON": {"asimd"}},
}
"""By architecture, the widest first: the flags of a processor that has it. Those of AVX-512 and AVX2 are what PyTorch
asks for."""
_PRETENDED = {
    "x86_64": {"default": "x86_64", "avx2": "AVX2", "avx512": "AVX-512"},
    "aarch64": {"default": "NEON"},
}
"""By architecture and `ATEN_CPU_CAPABILITY`: the widest instructions that PyTorch then uses, and that the C++ kernels
are compiled for on x86_64 (`cpu.build`). PyTorch ignores other values."""
_THREADS = re.compile(r"(.+), (\d+) threads?")


@dataclass(frozen=True)
class Device:
    """What was measured on, or is computed on.

    Attributes:
        type: `cpu`, `cuda` or `mps`.
        name: as it calls itself, `Intel(R) Xeon(R) Processor` or `NVIDIA H200`. Virtual machines hide the model, so
            that one name may stand for different processors.
        device_class: vendor and instruction set, `AMD AVX-512`, or a GPU's `sm_90`; `UNKNOWN` where it is not known.
        threads: that compute; 0 on a GPU.
    """

    type: str
    name: str
    device_class: str
    threads: int = 0

    def __str__(self) -> str:
        if not self.threads:
            return self.name
        return f"{self.name}, {self.threads} thread{'s' if self.threads != 1 else ''}"

    def distance(self, other: Device) -> tuple[bool, float] | None:
        """How far measurements of this device are from `other`, to be ordered: whether the name differs, then by what
        factor the numbers of threads do. (False, 1.0) is the same device; None: they say nothing about it."""
        if (self.type, self.device_class) != (other.type, other.device_class):
            return None
        if self.device_class == UNKNOWN and self.name != other.name:
            return None
        most, least = max(self.threads, other.threads, 1), max(min(self.threads, other.threads), 1)
        return (self.name != other.name, most / least) if most <= MOST_THREADS_RATIO * least else None


def device_of(device_type: str, text: str, device_class: str) -> Device:
    """The device whose `str` is `text`.

    Raises:
        ValueError: a CPU without a number of threads, or a part is empty.
    """
    label = _THREADS.fullmatch(text) if device_type == "cpu" else None
    if not (device_type and text and device_class) or (device_type == "cpu" and label is None):
        raise ValueError(f"no device: {device_type!r}, {text!r}, {device_class!r}")
    return Device(device_type, *((label[1], device_class, int(label[2])) if label else (text, device_class)))


def processor_name() -> str:
    """The processor's model name from the kernel, or the architecture where it does not say. `AMD EPYC as AVX2` where
    `ATEN_CPU_CAPABILITY` has it compute as an older one."""
    name = _entries().get("model name", "")
    name = name if name and name.lower() != "unknown" else f"{platform.machine()} CPU"
    instructions = _instruction_sets()
    return name if instructions is None or instructions[0] == instructions[1] else f"{name} as {instructions[1]}"


def processor_class() -> str:
    """This processor's vendor and the widest vector or matrix instructions that it may use: `Intel AMX`, `AMD AVX2`,
    `Arm SVE`. One without any is in the class of its architecture, `AMD x86_64`; `UNKNOWN` where the system does not
    say. With `ATEN_CPU_CAPABILITY` it is in the class of the older processor that it then computes as."""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "Apple NEON"  # whose kernel has no /proc
    entries = _entries()
    vendor, instructions = entries.get("vendor_id") or entries.get("CPU implementer"), _instruction_sets()
    return f"{_VENDORS.get(vendor, vendor)} {instructions[1]}" if vendor and instructions else UNKNOWN


def _instruction_sets() -> tuple[str, str] | None:
    """The widest instructions that this processor has, and the widest that it may use; None where the system does not
    say."""
    entries, known = _entries(), _INSTRUCTION_SETS.get(platform.machine())
    flags = {*(entries.get("flags") or entries.get("Features") or "").split()}
    if not (flags and known):
        return None
    names = [*known, platform.machine()]
    widest = next((name for name, needs in known.items() if needs <= flags), platform.machine())
    pretended = _PRETENDED[platform.machine()].get(os.environ.get("ATEN_CPU_CAPABILITY", ""), widest)
    return widest, max(widest, pretended, key=names.index)  # the narrower


def _entries() -> dict[str, str]:
    """What Linux says about the first processor; nothing elsewhere."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return found
