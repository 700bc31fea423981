"""GPUs after their makers' data sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass


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
