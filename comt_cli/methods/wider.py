"""Wider: the plain Pre-LN network, widened until it costs what a gated one does (ours, 2026).

A gain of a method that adds parameters is judged against what the same parameters, or the same FLOPs, buy without it:
the feed-forward networks are made wider, by whole channels, until the count is nearest.
Deviations: none; no paper has this row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import field_validator

from comt_cli.methods.base import DECODER_SITES, Method, Quantity, Widening, Wiring


class Wider(Method):
    """`like`: the method whose cost is met, a name or a name with options; `equal`: which cost."""

    name: ClassVar[str] = "wider"
    like: str | dict[str, Any]
    equal: Quantity = "parameters"

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
        return {"name": name, **method_from(options).model_dump(mode="json")}

    def wiring(self) -> Wiring:
        from comt_cli.layers.residual.pre_norm import PreNorm
        from comt_cli.methods import method_from

        assert isinstance(self.like, dict)
        return Wiring(PreNorm, widening=Widening(method_from(self.like).wiring(), self.equal))
