"""Wider: the plain network, Pre-LN unless said otherwise, widened until it costs what a gated one does (ours, 2026).

A gain of a method that adds parameters is judged against what the same parameters, or the same FLOPs, buy without it:
the feed-forward networks are made wider, by whole channels, until the count is nearest. `residual: post-norm` widens
the Post-LN network, for tables whose baseline that is. `of` names another network instead: `of: eau+grc, like: post-ln`
narrows that one until it costs no more than the plain network (the parameter-reduced models of Dhayalkar 2024).
Deviations: none; no paper widens, and that one does not say how its models were reduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

from pydantic import field_validator, model_validator

from comt_cli.methods.base import (
    DECODER_SITES,
    Method,
    Quantity,
    ResidualName,
    Widening,
    Wiring,
    residual_connection,
)
from comt_cli.recipe.schema import Sites


class Wider(Method):
    """`like`: the method whose cost is met, a name or a name with options; `equal`: which cost; `residual`: how the
    widened network joins skip and branch; or `of`: the method whose network is widened, or narrowed, as `like`."""

    name: ClassVar[str] = "wider"
    later: ClassVar = frozenset({"residual", "of"})
    like: str | dict[str, Any]
    equal: Quantity = "parameters"
    residual: ResidualName = "pre-norm"
    of: str | dict[str, Any] | None = None

    @field_validator("like", "of")
    @classmethod
    def _known(cls, given: str | dict[str, Any] | None) -> dict[str, Any] | None:
        """All options spelt out, so that a run is the same however its method was named."""
        from comt_cli.methods import method_from, methods

        if given is None:
            return None
        options: Mapping[str, Any] = {"name": given} if isinstance(given, str) else given
        name = options.get("name")
        known = {each for each, method in methods().items() if each != cls.name and method.fits(DECODER_SITES)}
        if name not in known:
            raise ValueError(f"no method of language models to be like is called {name!r}")
        return {"name": name, **method_from(options).stored()}

    @model_validator(mode="after")
    def _one_network(self) -> Self:
        if self.of is not None and self.residual != type(self).model_fields["residual"].default:
            raise ValueError("residual: belongs to the plain network; of names another, with options of its own")
        return self

    def absent(self, sites: Sites) -> dict[str, str]:
        from comt_cli.methods import method_from

        named = {key: options for key, options in (("like", self.like), ("of", self.of)) if isinstance(options, dict)}
        absent = {key: method_from(options).absent(sites) for key, options in named.items()}
        own = super().absent(sites)
        return own | {key: " ".join(problems.values()) for key, problems in absent.items() if problems}

    def wiring(self) -> Wiring:
        from comt_cli.methods import method_from

        assert isinstance(self.like, dict)
        widening = Widening(method_from(self.like).wiring(), self.equal)
        if self.of is None:
            return Wiring(residual_connection(self.residual), widening=widening)
        assert isinstance(self.of, dict)
        return replace(method_from(self.of).wiring(), widening=widening)
