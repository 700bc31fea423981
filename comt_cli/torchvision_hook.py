"""Make torchvision importable with any build of torch, for packages that import it, such as transformers.

PyPI's torchvision is compiled for CUDA. With a CPU build of torch its extension cannot be loaded, and its import fails
because two operators are not declared ("operator torchvision::nms does not exist"). A hook on that import declares
them without code: calling them is an error. It does nothing if the extension can be loaded.

`import comt_cli` installs the hook. For scripts that import transformers before it, or without it, `make` configures
its environment so that every Python imports comt_cli when it starts.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[Any] = []  # operators exist as long as their library is referenced


class _Hook:
    """Finds torchvision like the later finders, and declares its operators before its code runs."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torchvision":
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec: Any = next(filter(None, (finder.find_spec(name, path, target) for finder in behind)), None)
        if spec is not None and spec.loader is not None and spec.submodule_search_locations:
            folder, execute = spec.submodule_search_locations[0], spec.loader.exec_module

            def declare_and_execute(module: Any) -> None:
                if not (_kept or loads(folder)):
                    import torch

                    _kept.append(torch.library.Library("torchvision", "FRAGMENT"))  # type: ignore[no-untyped-call]
                    for operator in _OPERATORS:
                        _kept[-1].define(operator + _SCHEMA)
                execute(module)

            spec.loader.exec_module = declare_and_execute
        return spec


def loads(folder: str) -> bool:
    """Load the extension of the torchvision in `folder`; returns whether it fits the installed torch."""
    from pathlib import Path

    import torch

    try:
        for extension in Path(folder).glob("_C*.so"):
            torch.ops.load_library(str(extension))  # type: ignore[no-untyped-call]
            return True
    except (ImportError, OSError):
        pass
    return False


sys.meta_path.insert(0, _Hook())
