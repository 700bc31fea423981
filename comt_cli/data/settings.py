"""Settings of all kinds of data: the name of a corpus, which decides the other keys.

A corpus is a class in a module of a package, and is found without registration. Importing this imports neither torch
nor NumPy.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from pydantic import GetPydanticSchema, model_validator
from pydantic_core import core_schema

from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.recipe.problems import closest
from comt_cli.recipe.settings import Section


class Named(ABC):
    """A corpus by its names in recipes. The base class of a kind gives the `package` of its corpora.

    `names` are complete names; for names with an argument, such as `files:GLOB`, `pattern` is the regular expression,
    and `said` its form in error messages. Corpora are sorted by `order`, then by name. `keys` are settings that only
    some corpora of the kind have, this one included, with their implied values (None: none).
    """

    package: ClassVar[str]
    names: ClassVar[tuple[str, ...]] = ()
    pattern: ClassVar[str | None] = None
    said: ClassVar[str] = ""
    order: ClassVar[int] = 100
    keys: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, data: Any) -> None:
        self.data = data

    @abstractmethod
    def identity(self, progress: ProgressCallback = no_progress) -> Any:
        """Everything that decides the data, as JSON, known before it is prepared. Raises `UserError`."""

    @classmethod
    def of(cls, data: Any) -> Any:
        return cls(data)

    @classmethod
    def implied(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG003 - some depend on other settings
        """The values of keys that are missing in the settings `given`."""
        return cls.keys

    @classmethod
    def contradictions(cls, data: Any) -> Iterator[str]:  # noqa: ARG003
        """Settings that this corpus does not allow, as `key: message`."""
        yield from ()

    @classmethod
    def all(cls) -> tuple[type[Self], ...]:
        return tuple(each for each in _corpora(cls.package) if issubclass(each, cls))

    @classmethod
    def named(cls, name: str) -> type[Self]:
        """The corpus with this name in recipes. Raises `ValueError` if there is none."""
        for each in cls.all():
            if name in each.names or (each.pattern and re.fullmatch(each.pattern, name)):
                return each
        known = cls.all_names()
        allowed = " or ".join([", ".join(known), *(each.said for each in cls.all() if each.pattern)])
        close = closest(name, known)
        raise ValueError(f"{name!r} is none of {allowed}" + (f"; did you mean {close}?" if close is not None else ""))

    @classmethod
    def all_names(cls) -> tuple[str, ...]:
        return tuple(name for each in cls.all() for name in each.names)


@functools.cache
def _corpora(package: str) -> tuple[type[Named], ...]:
    found: list[type[Named]] = []
    for module_info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{module_info.name}")
        classes = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, Named)]
        found += [value for value in classes if value.__module__ == module.__name__ and (value.names or value.pattern)]
    return tuple(sorted(found, key=lambda each: (each.order, each.names)))


def name_of(kind: type[Named]) -> GetPydanticSchema:
    """Annotates a key whose value is the name of a corpus. The corpora are searched only when a value is checked."""

    def checked(name: str) -> str:
        kind.named(name)
        return name

    def described(_schema: Any, _handler: Any) -> dict[str, Any]:
        is_open = any(each.pattern for each in kind.all())
        return {"type": "string"} if is_open else {"type": "string", "enum": [*kind.all_names()]}

    return GetPydanticSchema(
        lambda source, handler: core_schema.no_info_after_validator_function(checked, handler(source)), described
    )


class DataSection(Section):
    """Data of a run. The key `named_by` names one of the corpora of `kind`."""

    kind: ClassVar[type[Named]]
    named_by: ClassVar[str] = "corpus"

    def make_corpus(self) -> Any:
        return self.kind.named(str(getattr(self, self.named_by))).of(self)

    @model_validator(mode="before")
    @classmethod
    def _normalised(cls, given: Any) -> Any:
        """Store implied values explicitly, so that giving them does not change the run id."""
        if not isinstance(given, dict):
            return given
        with contextlib.suppress(ValueError):  # an unknown corpus is reported for its own key
            corpus = cls.kind.named(str(given.get(cls.named_by, cls.model_fields[cls.named_by].default)))
            given = given | {key: value for key, value in corpus.implied(given).items() if given.get(key) is None}
        return cls.with_implied(given)

    @classmethod
    def with_implied(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The settings with other implied values in their stored form."""
        return given

    @model_validator(mode="after")
    def _keys_fit(self) -> Self:
        if wrong := list(self.contradictions()):
            raise ValueError(*wrong)  # `validate` reports each as a problem
        return self

    def contradictions(self) -> Iterator[str]:
        """Combinations of keys that are not allowed, as `key: message`."""
        name = str(getattr(self, self.named_by))
        corpus = self.kind.named(name)
        yield from corpus.contradictions(self)
        every = self.kind.all()
        for key in sorted({key for each in every for key in each.keys} - {*corpus.keys}):
            if getattr(self, key) is not None:
                names = ", ".join(name for each in every if key in each.keys for name in each.names or (each.said,))
                yield f"{key}: applies to {names}, not to {self.named_by} {name.partition(':')[0]}; leave it out"
