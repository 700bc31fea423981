"""What a method is: a published name = a residual connection + gates at sites + their initialisation. Nothing else.

A method's file holds a frozen configuration, whose fields are its options with the paper's values as defaults, and the
function `wiring`. Importing it imports no torch (layers are imported inside `wiring`), so that a recipe can be checked,
listed and reported at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from comt_cli.recipe.settings import Section

if TYPE_CHECKING:
    from comt_cli.layers.gates import GateFactory
    from comt_cli.layers.residual import ResidualFactory

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The seven projections of a LLaMA block."""

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def _once_each(sites: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(sites)) < len(sites):
        raise ValueError("a site stands twice")
    return sites


Sites = Annotated[tuple[Projection, ...], Field(min_length=1), AfterValidator(_once_each)]
ResidualName = Literal["pre-norm", "post-norm", "deepnorm", "mix-ln", "layernorm-scaling"]


@dataclass(frozen=True)
class Wiring:
    """What a model gets from a method: how its blocks join skip and branch, and which sites carry which gate."""

    residual: ResidualFactory
    gates: Mapping[str, GateFactory] = field(default_factory=dict)

    def without_gates(self) -> Wiring:
        """The plain model of this wiring: extra parameters are counted against it."""
        return Wiring(self.residual)


class Method(Section):
    """A method's options. Subclasses set `name` and say what the model gets."""

    name: ClassVar[str]

    def wiring(self) -> Wiring:
        """The residual connection and the gates of a model with this method."""
        raise NotImplementedError
