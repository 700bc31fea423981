"""The published methods, one file each. A file put here is found; it needs no entry anywhere."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from comt_cli.methods.base import ImageWiring, Method, Wiring


def methods(command: str | None = None) -> Mapping[str, type[Method]]:
    """Every method by name, sorted; with a command, those that it can train with. Imports no torch.

    Raises:
        TypeError: two files claim one name.
    """
    return {name: method for name, method in _all_methods().items() if command is None or command in method.commands()}


@functools.cache
def _all_methods() -> Mapping[str, type[Method]]:
    found: dict[str, type[Method]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for value in vars(module).values():
            is_method = isinstance(value, type) and issubclass(value, Method) and value is not Method
            if is_method and value.__module__ == module.__name__:
                if value.name in found:
                    raise TypeError(f"{value.__module__} and {found[value.name].__module__} both define {value.name!r}")
                found[value.name] = value
    return dict(sorted(found.items()))


def method_from(options: Mapping[str, Any]) -> Method:
    """The method that `{"name": ..., **options}` (a run's `spec.json`) describes.

    Raises:
        KeyError: no method has that name. There is no default to fall through to.
    """
    given = dict(options)
    return _all_methods()[given.pop("name")].model_validate(given)


__all__ = ["ImageWiring", "Method", "Wiring", "method_from", "methods"]
