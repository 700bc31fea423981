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

from comt_cli.recipe.schema import MethodOptions
from comt_cli.recipe.schema import Sites as OfferedSites

if TYPE_CHECKING:
    from torch import nn

    from comt_cli.layers.convolution import ImageNormFactory, WindowGateFactory
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


def _listed(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given  # a recipe's list: checking is strict after this


def _refuse_twice(sites: tuple[str, ...]) -> None:
    if len(set(sites)) < len(sites):
        raise ValueError("a site stands twice")


def _of_a_set(given: Any) -> Any:
    if not isinstance(given, str):
        return _listed(given)
    if given not in SITE_SETS:
        raise ValueError(f"no set of projections is called {given!r}; there are {', '.join(SITE_SETS)}")
    return SITE_SETS[given]


def _in_order(sites: tuple[str, ...]) -> tuple[str, ...]:
    _refuse_twice(sites)
    return tuple(sorted(sites, key=PROJECTIONS.index))  # however they are said, one run


Sites = Annotated[tuple[Projection, ...], Field(min_length=1), BeforeValidator(_of_a_set), AfterValidator(_in_order)]
"""A list of projections, or the name of a set of them (`SITE_SETS`)."""

CONVOLUTIONS = ("conv1", "conv2", "conv3")
"""The convolutions of a residual block, in order; a two-layer block has the first two."""

NORMS = ("norm1", "norm2", "norm3")
"""The norms of a residual block, in order; a two-layer block has the first two."""

Convolution = Literal["conv1", "conv2", "conv3"]
ImageNorm = Literal["norm1", "norm2", "norm3"]


def _all_of(every: tuple[str, ...]) -> BeforeValidator:
    def spelt_out(given: Any) -> Any:
        if isinstance(given, str) and given != "all":
            raise ValueError(f"give a list of {', '.join(every)}, or all")
        return every if given == "all" else _listed(given)

    return BeforeValidator(spelt_out)


def _sorted(sites: tuple[str, ...]) -> tuple[str, ...]:
    _refuse_twice(sites)
    return tuple(sorted(sites))


ConvolutionSites = Annotated[
    tuple[Convolution, ...], Field(min_length=1), _all_of(CONVOLUTIONS), AfterValidator(_sorted)
]
"""A list of a block's convolutions, or `all`: every one that the blocks have."""

NormSites = Annotated[tuple[ImageNorm, ...], Field(min_length=1), _all_of(NORMS), AfterValidator(_sorted)]
"""A list of a block's norms, or `all`: every one that the blocks have."""

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
    "scaled",
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


@dataclass(frozen=True)
class ImageWiring:
    """What an image classifier gets from a method: how its blocks join skip path and branch, and what modulates them.

    `windows` are the gates on convolutions (`CONVOLUTIONS`), `norms` what stands in the place of batch norms (`NORMS`);
    both inside residual blocks alone: the stem, projections of the skip path and the last norm carry none.
    """

    residual: ResidualFactory
    windows: Mapping[str, WindowGateFactory] = field(default_factory=dict)
    norms: Mapping[str, ImageNormFactory] = field(default_factory=dict)


class Method(MethodOptions):
    """A method's options. Subclasses set `name` and say what a model gets, of one kind or of both."""

    name: ClassVar[str]

    def wiring(self) -> Wiring:
        """The residual connection and the gates of a language model with this method."""
        raise NotImplementedError

    def image_wiring(self) -> ImageWiring:
        """The residual connection and the modulators of an image classifier with this method."""
        raise NotImplementedError

    @classmethod
    def fits(cls, sites: OfferedSites) -> bool:
        """Whether models that offer these sites can have the method: it says the wiring of such."""
        offered = {
            "tokens": cls.wiring is not Method.wiring,
            "maps": cls.image_wiring is not Method.image_wiring,
        }
        return offered[sites.stream]
