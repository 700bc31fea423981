r"""Wider: the plain network, Pre-LN by default, widened to the cost of a gated one (ours, 2026).

$$y = x + F'(N(x)), \qquad F' \text{ wider than } F$$

A gain of a method that adds parameters is compared with the gain from the same number of parameters, or FLOPs, in the
plain network. The feed-forward networks are widened by whole channels until the count is nearest. `residual: post-norm`
widens the Post-LN network, for tables with that baseline. `of` names another network: `of: eau+grc, like: post-ln`
narrows it until it costs no more than the plain network (the parameter-reduced models of Dhayalkar 2024).
Deviations: none. No paper widens its baseline, and Dhayalkar does not state how the models were reduced.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from pydantic import field_validator, model_validator

from comt_cli.methods import method_from, methods
from comt_cli.methods.base import NamesAnother, Quantity, ResidualName, Widening, Wiring, residual_connection
from comt_cli.recipe.problems import nearest
from comt_cli.tasks.base import DECODER_SITES, Sites


def spelt_out(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """The method that an option names, with all its options, so that the run id does not depend on how it was named.

    Raises:
        ValueError: There is no such method for language models that names no other method, or an option is wrong.
    """
    options: Mapping[str, Any] = {"name": given} if isinstance(given, str) else given
    name, own = options.get("name"), {key: value for key, value in options.items() if key != "name"}
    fitting = {each: method for each, method in methods().items() if method.fits(DECODER_SITES)}
    known = {each: method for each, method in fitting.items() if not issubclass(method, NamesAnother)}
    if not isinstance(name, str) or name not in known:
        hint = nearest(name, known) if isinstance(name, str) else "say its name"
        raise ValueError(f"there is no method {name!r} of language models that is allowed here; {hint}")
    return {"name": name, **known[name].model_validate_json(json.dumps(own), strict=True).stored()}


def absent_of_named(sites: Sites, **named: str | dict[str, Any] | None) -> dict[str, str]:
    """As `Method.absent`, for methods named by options (`spelt_out`), by the option."""
    absent = {key: method_from(given).absent(sites) for key, given in named.items() if isinstance(given, dict)}
    return {key: " ".join(problems.values()) for key, problems in absent.items() if problems}


class Wider(NamesAnother):
    """`like`: the method whose cost is met, a name or a name with options; `equal`: which cost; `residual`: how the
    widened network joins skip and branch; or `of`: the method whose network is widened, or narrowed, as `like`."""

    later = frozenset({"residual", "of"})
    like: str | dict[str, Any]
    equal: Quantity = "parameters"
    residual: ResidualName = "pre-norm"
    of: str | dict[str, Any] | None = None

    @field_validator("like", "of")
    @classmethod
    def _known(cls, given: str | dict[str, Any] | None) -> dict[str, Any] | None:
        return None if given is None else spelt_out(given)

    @model_validator(mode="after")
    def _one_network(self) -> Self:
        if self.of is not None and self.residual != type(self).model_fields["residual"].default:
            raise ValueError("residual: is for the plain network; the method in of has its own options")
        return self

    def absent(self, sites: Sites) -> dict[str, str]:
        return super().absent(sites) | absent_of_named(sites, like=self.like, of=self.of)

    def wiring(self) -> Wiring:
        assert isinstance(self.like, dict)
        widening = Widening(method_from(self.like).wiring(), self.equal)
        if self.of is None:
            return Wiring(residual_connection(self.residual), widening=widening)
        assert isinstance(self.of, dict)
        return replace(method_from(self.of).wiring(), widening=widening)
