"""The published methods, one file each. A file put here is found; it needs no entry anywhere."""

from __future__ import annotations

import functools
import importlib
import json
import pkgutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import PydanticUndefinedAnnotation

from comt_cli.errors import UserError
from comt_cli.methods.base import ConnectionMethod, Method, Wiring, residual_connections
from comt_cli.methods.mistakes import NO_METHODS, mistake, naming_mistakes
from comt_cli.recipe.problems import Document, nearest, validate
from comt_cli.recipe.schema import Catalogue
from comt_cli.tasks import task_of, tasks

if TYPE_CHECKING:
    import pandas as pd


def methods(command: str | None = None) -> Mapping[str, type[Method]]:
    """Every method by name, sorted; with a command, those that it can train with. Imports no torch.

    Raises:
        UserError: a method's file cannot be imported, or two claim one name; says which.
    """
    if command is None:
        return _all_methods()
    sites = task_of(command).sites
    return {name: method for name, method in _all_methods().items() if method.fits(sites)}


@functools.cache
def _all_methods() -> Mapping[str, type[Method]]:
    found: dict[str, type[Method]] = {}
    for name in sorted({module.name for module in pkgutil.iter_modules(__path__)} - {*NO_METHODS}):
        with naming_mistakes():
            module = importlib.import_module(f"{__name__}.{name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module.__name__:
                _check(value, Path(str(module.__file__)).resolve(), found)
                found[value.name] = value
    return dict(sorted(found.items()))


def _check(method: type[Method], file: Path, found: Mapping[str, type[Method]]) -> None:
    """Refuse a class that can be imported, but not used. Raises `UserError`."""
    if method.wiring is Method.wiring:
        raise mistake(file, f"{method.__name__} has no wiring", hint="Give it one: def wiring(self) -> Wiring: ...")
    if issubclass(method, ConnectionMethod) and method.connection not in (known := residual_connections()):
        said = f"{method.__name__}: no residual connection is called {method.connection!r}"
        raise mistake(file, said, hint=nearest(method.connection, known))
    if method.name in found:
        other = found[method.name].__module__.rpartition(".")[2]
        raise mistake(file, f"{other}.py has a method {method.name!r} already", hint="Give one of them another name.")
    try:
        method.model_rebuild()  # annotations are text until here
    except PydanticUndefinedAnnotation as error:
        raise mistake(file, f"{method.__name__} has an option of a type that is not defined: {error.name}") from error


def catalogue() -> Catalogue:
    """Everything that a recipe can name. Raises `UserError`, see `methods`."""
    return Catalogue(methods(), tasks())


def method_from(options: Mapping[str, Any]) -> Method:
    """The method that `{"name": ..., **options}` (a run's `spec.json`) describes.

    Raises:
        KeyError: no method has that name. There is no default to fall through to.
    """
    given = dict(options)
    name = given.pop("name")
    if not isinstance(name, str):  # a list has no hash, and a checkpoint may hold one
        raise KeyError(repr(name))
    return _all_methods()[name].model_validate(given)


def method(name: str, /, **options: Any) -> Method:
    """A method with its options, checked as those of a recipe's row: what `wrap` takes, and what says how a network is
    wired (`method.wiring()`). Options that are not given have the paper's values. Imports no torch.

    Raises:
        UserError: no method has that name, or an option is unknown or has a value that does not fit.

    >>> from comt_cli import method
    >>> method("transponder", rank=4).rank
    4
    """
    if name not in methods():
        raise UserError(f"there is no method {name!r}", nearest(name, methods()))
    document = Document()
    try:
        found = validate(methods()[name], options, document)
    except TypeError as error:  # an option is no plain data
        raise UserError(f"method {name}: {error}", "Options are numbers, text, or lists of these.") from None
    if found is None:
        raise UserError(f"method {name}: {'; '.join(map(str, document.problems))}")
    return found


def list_methods(command: str | None = None) -> pd.DataFrame:
    """The methods, by name: `name`, the `commands` that train with it, and a `summary` with its paper; of a `command`,
    such as `train-lm`, those that it can train with. Raises `UserError` where there is no such command.

    >>> from comt_cli import list_methods
    >>> methods = list_methods("train-resnet")
    >>> methods.loc[methods["name"] == "sas-resnet", "commands"].item()
    'train-resnet'
    """
    import pandas as pd

    lines = []
    for name, kind in methods(command).items():
        commands = " ".join(each for each, task in tasks().items() if kind.fits(task.sites))
        lines.append((name, commands, str(sys.modules[kind.__module__].__doc__).partition("\n")[0].rstrip(".")))
    return pd.DataFrame(lines, columns=["name", "commands", "summary"])


def in_words(given: Mapping[str, Any]) -> str:
    """`hyper-connections (n 1, dynamic false)`: a method of a run, with its options that are not defaults."""
    fields, said = _all_methods()[given["name"]].model_fields, []
    for key, value in given.items():
        default = None if key == "name" else fields[key].get_default()
        # In a run's `spec.json` a tuple is a list.
        is_default = value == ([*default] if isinstance(default, tuple) else default)
        if key == "name" or (is_default and not fields[key].is_required()):
            continue
        parts = value if isinstance(value, list) else [value]
        named = (in_words(part) if isinstance(part, Mapping) else json.dumps(part).strip('"') for part in parts)
        said.append(f"{key.replace('_', ' ')} {'+'.join(named)}")
    return f"{given['name']} ({', '.join(said)})" if said else str(given["name"])


__all__ = ["Method", "Wiring", "catalogue", "in_words", "list_methods", "method", "method_from", "methods"]
__all__ += ["naming_mistakes"]
