"""Which PyTorch is installed, read from its files: importing it takes seconds. Torch-free."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path


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


def built_for(platform: str) -> bool | None:
    """Whether PyTorch was built for `cuda`, or `hip`; None if its files do not say."""
    said = re.search(rf"^{platform}\b[^=\n]*=\s*(.+)$", torch_build(), re.MULTILINE)
    return None if said is None else said[1].strip() != "None"
