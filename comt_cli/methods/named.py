"""Methods with an option that names another method: `{name: wider, like: comt}`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from comt_cli.methods import method_from, methods
from comt_cli.methods.base import DECODER_SITES, Method
from comt_cli.recipe.problems import nearest
from comt_cli.recipe.schema import Sites


class NamesAnother(Method):
    """A method that names another one, which is not such a method itself: of two that widen, one would be lost."""


def spelt_out(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """The method that an option names, with all its options, so that a run is the same however it was named.

    Raises:
        ValueError: no method of language models that names no other has that name, or an option of it is wrong.
    """
    options: Mapping[str, Any] = {"name": given} if isinstance(given, str) else given
    name, own = options.get("name"), {key: value for key, value in options.items() if key != "name"}
    known = {
        each: method
        for each, method in methods().items()
        if method.fits(DECODER_SITES) and not issubclass(method, NamesAnother)
    }
    if not isinstance(name, str) or name not in known:
        hint = nearest(name, known) if isinstance(name, str) else "say its name"
        raise ValueError(f"no method of language models that could stand here is called {name!r}; {hint}")
    return {"name": name, **known[name].model_validate_json(json.dumps(own), strict=True).stored()}


def absent_of_named(sites: Sites, **named: str | dict[str, Any] | None) -> dict[str, str]:
    """As `Method.absent`, of methods that options name (`spelt_out`), by the option."""
    absent = {key: method_from(given).absent(sites) for key, given in named.items() if isinstance(given, dict)}
    return {key: " ".join(problems.values()) for key, problems in absent.items() if problems}
