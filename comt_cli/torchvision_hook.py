"""torchvision beside any build of torch, for whatever imports it, as transformers does.

PyPI's torchvision is compiled for CUDA. Beside a CPU build of torch its extension cannot be loaded, and its import
fails at two operators that nobody declared ("operator torchvision::nms does not exist"). A hook on that import declares
them; one that is declared has no code: calling it is an error. It does nothing where the extension can be loaded.

`import comt_cli` starts the hook. For scripts that import transformers before, or alone, `make` has every Python of the
environment that it sets up import comt_cli when it starts.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[Any] = []  # an operator is declared for as long as its library is referred to


class _Hook:
    """Finds torchvision as the finders behind it do, and declares its operators before its code runs."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's specification; None for all others."""
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
    """Whether the extension of the torchvision in `folder` fits the torch there is; it is loaded then."""
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
