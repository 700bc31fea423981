"""Methods that an option of another method names: `{name: wider, like: comt}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comt_cli.methods import method_from, methods
from comt_cli.methods.base import DECODER_SITES
from comt_cli.recipe.problems import nearest
from comt_cli.recipe.schema import Sites


def spelt_out(given: str | Mapping[str, Any], outer: str) -> dict[str, Any]:
    """A method that an option of the method `outer` names, with all its options, so that a run is the same however it
    was named.

    Raises:
        ValueError: no other method of language models has that name.
    """
    options: Mapping[str, Any] = {"name": given} if isinstance(given, str) else given
    name = options.get("name")
    known = [each for each, method in methods().items() if each != outer and method.fits(DECODER_SITES)]
    if name not in known:
        hint = nearest(name, known) if isinstance(name, str) else "say its name"
        raise ValueError(f"no other method of language models is called {name!r}; {hint}")
    return {"name": name, **method_from(options).stored()}


def absent_of_named(sites: Sites, **named: str | dict[str, Any] | None) -> dict[str, str]:
    """As `Method.absent`, of methods that options name (`spelt_out`), by the option."""
    absent = {key: method_from(given).absent(sites) for key, given in named.items() if isinstance(given, dict)}
    return {key: " ".join(problems.values()) for key, problems in absent.items() if problems}
