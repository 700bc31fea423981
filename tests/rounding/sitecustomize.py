"""On PYTHONPATH, with COMT_ROUNDING set to a seed: every Python process computes as `other_processor` says.

Python imports a module of this name when it starts. Nothing happens until the process imports PyTorch or one of comt's
C++ operations; then this is done once they are loaded.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

OPERATIONS = "comt_cli.kernels.cpu.calls"


class Finder(importlib.abc.MetaPathFinder):
    """Finds a module where Python would, and changes what it computes as soon as it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name not in ("torch", OPERATIONS):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            import other_processor

            load(module)
            if name == "torch":
                other_processor.change_pytorch()
            else:
                other_processor.change_operations(module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


if os.environ.get("COMT_ROUNDING"):
    sys.meta_path.insert(0, Finder())
