"""The corpora of a kind of data: each a file of a package, found by being there."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from abc import ABC
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self


class Named(ABC):
    """A corpus by the names that recipes give it. The base class of a kind says in which `package` its corpora are."""

    package: ClassVar[str]
    names: ClassVar[tuple[str, ...]] = ()
    """Names that stand for themselves."""
    pattern: ClassVar[str | None] = None
    """Of names with an argument, such as `files:.+`, the regular expression of the whole name."""
    said: ClassVar[str] = ""
    """What the pattern stands for, in an error about a wrong name: `files:GLOB, text of your own`."""
    order: ClassVar[int] = 100
    """Corpora are listed by this, then by name; the first is the default."""

    keys: ClassVar[Mapping[str, Any]] = {}
    """The settings that not every corpus of the kind has but this one does, with the values that are implied (None:
    none)."""
    reasons: ClassVar[Mapping[str, str]] = {}
    """Why it has not a key that others of the kind have, where that needs saying."""

    def __init__(self, data: Any) -> None:
        self.data = data

    @classmethod
    def of(cls, data: Any) -> Any:
        """The corpus that the settings describe."""
        return cls(data)

    @classmethod
    def implied(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG003 - some depend on other settings
        """The values of what is left out of the settings `given`."""
        return cls.keys

    @classmethod
    def contradictions(cls, data: Any) -> Iterator[str]:  # noqa: ARG003
        """What of the settings this corpus cannot have, as `key: what is wrong`."""
        yield from ()

    @classmethod
    def all(cls) -> tuple[type[Self], ...]:
        """Every corpus of the kind. Imports neither torch nor NumPy."""
        return tuple(each for each in _corpora(cls.package) if issubclass(each, cls))

    @classmethod
    def named(cls, name: str) -> type[Self]:
        """The corpus that recipes call `name`. Raises `ValueError` where none is."""
        for each in cls.all():
            if name in each.names or (each.pattern and re.fullmatch(each.pattern, name)):
                return each
        raise ValueError(f"there is no corpus {name!r}")

    @classmethod
    def all_names(cls, **having: Any) -> tuple[str, ...]:
        """The names of all corpora whose attributes have these values."""
        fitting = (each for each in cls.all() if all(getattr(each, key) == value for key, value in having.items()))
        return tuple(name for each in fitting for name in each.names)

    @classmethod
    def all_patterns(cls) -> tuple[str, str]:
        """The regular expression of all names with an argument, and what they stand for."""
        found = [each for each in cls.all() if each.pattern]
        return "|".join(str(each.pattern) for each in found), " or ".join(each.said for each in found)


@functools.cache
def _corpora(package: str) -> tuple[type[Named], ...]:
    """The classes with names that the files of a package define."""
    found: list[type[Named]] = []
    for module_info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{module_info.name}")
        classes = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, Named)]
        found += [value for value in classes if value.__module__ == module.__name__ and (value.names or value.pattern)]
    return tuple(sorted(found, key=lambda each: (each.order, each.names)))
