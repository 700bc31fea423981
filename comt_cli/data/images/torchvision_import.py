"""torchvision beside any build of torch.

The registry's torchvision is compiled for CUDA. Beside a CPU build of torch its extension cannot be loaded; torchvision
would do without, were it not for two operators whose shapes it describes when it is imported: that fails for operators
which nobody declared ("operator torchvision::nms does not exist"). Data sets need none of them.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import types
from functools import cache
from pathlib import Path
from typing import Any

from comt_cli.errors import UserError
from comt_cli.installing import install_package

_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


@cache
def make_torchvision_importable() -> None:
    """Declare the operators that torchvision describes when it is imported, where its extension cannot be loaded; to be
    called before anything imports it, as transformers does. A declared operator has no code: calling it is an error."""
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations or _extension_loads(spec.submodule_search_locations[0]):
        return
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _OPERATORS:
        if not hasattr(torch.ops.torchvision, schema.partition("(")[0]):
            library.define(schema)
    _kept.append(library)


_kept: list[object] = []
"""An operator is declared for as long as its library is referred to."""


def torchvision_datasets() -> types.ModuleType:
    """The module `torchvision.datasets`. Raises `UserError` where it cannot be imported."""
    make_torchvision_importable()
    try:
        from torchvision import datasets
    except (ImportError, OSError, RuntimeError) as error:
        raise UserError(
            f"torchvision cannot be imported: {error}",
            "Install the torchvision that belongs to the installed torch: "
            + install_package("--upgrade", "torch", "torchvision"),
        ) from error
    module: types.ModuleType = datasets
    return module


def _extension_loads(folder: str) -> bool:
    """Whether torchvision will load its operators: found and loaded here as it does itself."""
    import torch

    details = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    spec = importlib.machinery.FileFinder(str(Path(folder)), details).find_spec("_C")
    if spec is None or spec.origin is None:
        return False
    try:
        torch.ops.load_library(spec.origin)  # type: ignore[no-untyped-call]
    except (ImportError, OSError):
        return False
    return True
