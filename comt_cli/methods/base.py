"""What a method is: a published name = a residual connection + gates at sites + their initialisation. Nothing else.

A method's file holds a frozen configuration, whose fields are its options with the paper's values as defaults, and the
function `wiring`. Importing it imports no torch (layers are imported inside `wiring`), so that a recipe can be checked,
listed and reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from comt_cli.recipe.settings import Section

if TYPE_CHECKING:
    from torch import nn

    from comt_cli.layers.gates import GateFactory
    from comt_cli.layers.norms import NormFactory
    from comt_cli.layers.residual import ResidualFactory

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The seven projections of a LLaMA block."""

SITE_SETS: dict[str, tuple[str, ...]] = {
    "all": PROJECTIONS,
    "self-attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "only_last": ("o_proj", "down_proj"),
    "only_first": ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"),
    "only_qk": ("q_proj", "k_proj"),
    "without_up_gate": ("q_proj", "k_proj", "v_proj", "o_proj", "down_proj"),
}
"""The papers' names for sets of projections (CoMT, Table 4; Transponder, Table 5)."""

Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def _of_a_set(given: Any) -> Any:
    if not isinstance(given, str):
        return tuple(given) if isinstance(given, list) else given  # a recipe's list: checking is strict after this
    if given not in SITE_SETS:
        raise ValueError(f"no set of projections is called {given!r}; there are {', '.join(SITE_SETS)}")
    return SITE_SETS[given]


def _in_order(sites: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(sites)) < len(sites):
        raise ValueError("a site stands twice")
    return tuple(sorted(sites, key=PROJECTIONS.index))  # however they are said, one run


Sites = Annotated[tuple[Projection, ...], Field(min_length=1), BeforeValidator(_of_a_set), AfterValidator(_in_order)]
"""A list of projections, or the name of a set of them (`SITE_SETS`)."""

ResidualName = Literal[
    "pre-norm",
    "post-norm",
    "deepnorm",
    "deepnorm-mixln-code",
    "mix-ln",
    "layernorm-scaling",
    "sandwich-ln",
    "scaled-init",
    "rezero",
    "highway",
    "laurel-rw",
    "laurel-lr",
    "laurel-pa",
    "laurel-rw-lr",
    "sas",
    "grc",
]
"""Every residual connection of `layers.residual`, each with its own defaults."""

Quantity = Literal["parameters", "flops"]


@dataclass(frozen=True)
class Widening:
    """Make the feed-forward networks wider until the model has as many parameters, or FLOPs, as one wired `like`."""

    like: Wiring
    equal: Quantity


@dataclass(frozen=True)
class Wiring:
    """What a model gets from a method: how its blocks join skip and branch, and which sites carry which gate.

    `norm` stands in RMSNorm's place; `entry`, made for the model's width, is what the embedded tokens go through first.
    """

    residual: ResidualFactory
    gates: Mapping[str, GateFactory] = field(default_factory=dict)
    norm: NormFactory | None = None
    entry: Callable[[int], nn.Module] | None = None
    widening: Widening | None = None


class Method(Section):
    """A method's options. Subclasses set `name` and say what the model gets."""

    name: ClassVar[str]

    def wiring(self) -> Wiring:
        """The residual connection and the gates of a model with this method."""
        raise NotImplementedError
