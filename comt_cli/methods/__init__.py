"""The published methods, one file each. A new file is found without an entry anywhere."""

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
    """All methods by name, sorted, or those that a command can train. Imports no torch.

    Args:
        command: A training command, such as `train-lm`.

    Raises:
        UserError: The file of a method cannot be imported, or two methods have the same name.
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
    """Raise `UserError` for a class that can be imported but not used."""
    if method.wiring is Method.wiring:
        raise mistake(file, f"{method.__name__} has no wiring", hint="Give it one: def wiring(self) -> Wiring: ...")
    if issubclass(method, ConnectionMethod) and method.connection not in (known := residual_connections()):
        said = f"{method.__name__}: there is no residual connection {method.connection!r}"
        raise mistake(file, said, hint=nearest(method.connection, known))
    if method.name in found:
        other = found[method.name].__module__.rpartition(".")[2]
        raise mistake(file, f"{other}.py has a method {method.name!r} already", hint="Give one of them another name.")
    try:
        method.model_rebuild()  # annotations are text until here
    except PydanticUndefinedAnnotation as error:
        raise mistake(file, f"{method.__name__}: the type of an option is not defined: {error.name}") from error


def catalogue() -> Catalogue:
    """Methods and tasks that a recipe can name. Raises `UserError` as `methods`."""
    return Catalogue(methods(), tasks())


def method_from(options: Mapping[str, Any]) -> Method:
    """The method described by `{"name": ..., **options}`, as in a run's `spec.json`.

    Raises:
        KeyError: There is no method of this name. There is no default.
    """
    given = dict(options)
    name = given.pop("name")
    if not isinstance(name, str):  # a checkpoint may hold a list, which has no hash
        raise KeyError(repr(name))
    return _all_methods()[name].model_validate(given)


def method(name: str, /, **options: Any) -> Method:
    """A method with its options, which are checked like those of a row in a recipe. Imports no torch.

    The result can be passed to `wrap`; its `wiring()` describes the network.

    Args:
        name: Name of the method.
        **options: Options; others have the paper's values.

    Returns:
        An immutable configuration whose attributes are the options.

    Raises:
        UserError: The method or an option does not exist, or a value does not fit.

    Examples:
        >>> from comt_cli import method
        >>> method("transponder", rank=4).rank
        4
    """
    if name not in methods():
        raise UserError(f"there is no method {name!r}", nearest(name, methods()))
    document = Document()
    try:
        found = validate(methods()[name], options, document)
    except TypeError as error:  # an option is not plain data
        raise UserError(f"method {name}: {error}", "Options are numbers, text, or lists of these.") from None
    if found is None:
        raise UserError(f"method {name}: {'; '.join(map(str, document.problems))}")
    return found


def list_methods(command: str | None = None) -> pd.DataFrame:
    """The methods as a data frame, sorted by name.

    Args:
        command: Only methods that this command can train, such as `train-lm`.

    Returns:
        The columns `name`, `commands` (those that can train it, separated by spaces) and `summary`, with the paper.

    Raises:
        UserError: There is no such command.

    Examples:
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
    """Method of a run with the options that are not defaults: `hyper-connections (n 1, dynamic false)`."""
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
