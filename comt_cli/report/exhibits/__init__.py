"""What is shown of runs, one file each: tables, and the figures beside them. A file put here is found."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

from comt_cli.report.exhibits.base import Exhibit


@cache
def exhibits() -> tuple[type[Exhibit], ...]:
    """Every kind of exhibit, in the order of the names of their files. Imports no matplotlib."""
    modules = [importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)]
    return tuple(
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Exhibit) and value.__module__ == module.__name__
        and not inspect.isabstract(value)
    )  # fmt: skip


__all__ = ["Exhibit", "exhibits"]
