"""Wider: the plain network, Pre-LN unless said otherwise, widened until it costs what a gated one does (ours, 2026).

A gain of a method that adds parameters is judged against what the same parameters, or the same FLOPs, buy without it:
the feed-forward networks are made wider, by whole channels, until the count is nearest. `residual: post-norm` widens
the Post-LN network, for tables whose baseline that is.
Deviations: none; no paper has this row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import field_validator

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
    widened network joins skip and branch."""

    name: ClassVar[str] = "wider"
    later: ClassVar = frozenset({"residual"})
    like: str | dict[str, Any]
    equal: Quantity = "parameters"
    residual: ResidualName = "pre-norm"

    @field_validator("like")
    @classmethod
    def _known(cls, given: str | dict[str, Any]) -> dict[str, Any]:
        """All options spelt out, so that a run is the same however its method was named."""
        from comt_cli.methods import method_from, methods

        options: Mapping[str, Any] = {"name": given} if isinstance(given, str) else given
        name = options.get("name")
        known = {each for each, method in methods().items() if each != cls.name and method.fits(DECODER_SITES)}
        if name not in known:
            raise ValueError(f"no method of language models to be like is called {name!r}")
        return {"name": name, **method_from(options).stored()}

    def absent(self, sites: Sites) -> dict[str, str]:
        from comt_cli.methods import method_from

        assert isinstance(self.like, dict)
        absent = method_from(self.like).absent(sites)
        return {"like": " ".join(absent.values())} if absent else {}

    def wiring(self) -> Wiring:
        from comt_cli.methods import method_from

        assert isinstance(self.like, dict)
        widening = Widening(method_from(self.like).wiring(), self.equal)
        return Wiring(residual_connection(self.residual), widening=widening)
