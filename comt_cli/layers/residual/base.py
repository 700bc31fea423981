"""What every residual connection is: a module that is handed the stream and the branch, and returns the new stream.

It owns the norms, because where they stand is the very thing in which the published connections differ.
Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from comt_cli.kernels.add_norm import add_norm
from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.modulate import modulate
from comt_cli.layers.gates import Site


class Branch(Protocol):
    """What the block computes, F: [B, T, D] -> [B, T, D].

    That of self-attention takes three inputs as well, for queries, keys and values."""

    def __call__(self, h_BTD: Tensor, *ways_BTD: Tensor) -> Tensor: ...

    def before_gate(self, h_BTD: Tensor) -> tuple[Tensor, Modulation] | None:
        """F's last product, [B, T, C], with the gate that makes F of it (`Projections.product`), for a kernel that
        applies it on the way to something else; None where there is more to F than that."""


class Pending(NamedTuple):
    """A residual stream whose last addition is left to the norm that reads it: x + gamma * z, [B, T, D].

    `product` is [B, T, C]."""

    x: Tensor
    product: Tensor
    modulation: Modulation


class Streams(NamedTuple):
    """Several residual streams side by side, [B, T, n, D], of which every branch reads a mixture."""

    x: Tensor


class Sources(NamedTuple):
    """A residual stream, and other tensors that later junctions read, [B, T, D] each: what came before it, the oldest
    first, or one that goes beside it. Each is the very tensor that was put out: nothing is stacked, so that all blocks
    together keep each once."""

    x: Tensor
    outputs: tuple[Tensor, ...]


class Ways(NamedTuple):
    """The stream, and what the next block's queries, keys and values are each computed from, [B, T, D] all; what came
    before it, as of `Sources`; and what the shares of these in the four differ by from their start, [B, T, ways,
    sources], for analyses: without gradients."""

    x: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor
    outputs: tuple[Tensor, ...]
    shares: Tensor


class Carrying(NamedTuple):
    """A state, and what attention of later blocks reads of that of earlier ones, [B, K, T, E] each
    (`shared_values`)."""

    state: State
    kept: tuple[Tensor, ...]


State = Tensor | Pending | Streams | Sources | Ways | Carrying | tuple[Tensor, ...]
"""What goes from junction to junction: the residual stream; behind it, newest first, what a connection remembers."""


def stream_of(state: State) -> Tensor:
    """The residual stream, [B, T, D], without what is remembered; of several streams their sum."""
    if isinstance(state, Streams):
        return state.x.sum(-2)
    if isinstance(state, Carrying):
        return stream_of(state.state)
    if isinstance(state, Pending):
        zhat_TD = modulate(state.product.flatten(0, -2), state.modulation, [state.x.shape[-1]])
        return state.x + zhat_TD.view_as(state.x)
    return state if isinstance(state, Tensor) else state[0]


def settled(state: State) -> State:
    """The same state with no addition pending."""
    if isinstance(state, Carrying):
        return Carrying(settled(state.state), state.kept)
    return stream_of(state) if isinstance(state, Pending) else state


def normalised(state: State, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """The residual stream and N(stream), [B, T, D] each."""
    if isinstance(state, Pending) and isinstance(norm, nn.RMSNorm):
        assert norm.eps is not None
        x_TD, product_TC = state.x.flatten(0, -2), state.product.flatten(0, -2)
        y_TD, n_TD = add_norm(x_TD, product_TC, state.modulation, norm.weight, norm.eps)
        return y_TD.view_as(state.x), n_TD.view_as(state.x)
    x_BTD = stream_of(state)
    return x_BTD, norm(x_BTD)


@dataclass(frozen=True)
class Junction:
    """A place where a skip path and a branch meet: junction `index` of `count` in its stack of blocks, in block `layer`
    of `layers`, all from 0. `part` is the model's name of the branch: `attention`, `mlp` ...

    That of a ResNet is its block's only one, `map`: it hands its feature maps over with the channels last,
    [B, H, W, D], so that what works on the last dimension works on them; the branch normalises for itself, and `norm`
    gives the identity.

    `before` are the connections at the block's earlier junctions, which this one may share parameters with. `depths`
    has the number of blocks of every stack by its name, where a model has several.
    """

    width: int
    stack: str
    index: int
    count: int
    layer: int
    layers: int
    part: str
    norm: Callable[[], nn.Module]
    before: Sequence[ResidualConnection] = ()
    depths: Mapping[str, int] = field(default_factory=dict)


class ResidualConnection(nn.Module):
    """y = connection(x, F). Subclasses say how; what they need besides x and F they keep in themselves."""

    keeps_final_norm = True
    """Whether the model's last norm, after all blocks, stays."""

    ends_in_norm = False
    """Whether what it puts out has been through a norm of its own. The encoder-decoder, as it was published, has no
    final norm behind such a connection; language models, as theirs were, keep it."""

    has_states = False
    """Whether it hands on more than a stream, so that no one tensor is what later blocks depend on."""

    has_ways = False
    """Whether it gives self-attention three inputs, for queries, keys and values."""

    remembers = 0
    """How many earlier inputs x of connections this one wants to see, beside its own."""

    def __init__(self, junction: Junction) -> None:
        super().__init__()
        self.junction = junction

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        """The stream after this junction, [B, T, D]. One that remembers is handed the earlier inputs as well, newest
        first, as a third argument: fewer than it wants near the beginning."""
        raise NotImplementedError

    def entered(self, state: State) -> Tensor:
        """The stream that a stack of blocks begins with, [B, T, D]: what its first junction is handed, and no other.
        Behind it the method would begin anew, and the model be the baseline without a word."""
        if self.junction.index > 0:
            raise ValueError(f"junction {self.junction.index} is handed a plain stream, which begins a stack of blocks")
        return stream_of(state)

    def read_out(self, norm: Callable[[], nn.Module]) -> ReadOut | None:
        """What makes one stream of the state behind the last junction, which this is, where that is more than its
        stream (`stream_of`): a module of the model's. `norm` makes norms like the final one."""
        return None

    def read(self, state: State) -> Tensor:
        """What stands for the residual stream at this junction, [B, T, D]: what analyses compare from block to
        block."""
        return stream_of(state)

    def mixing(self, state: State) -> dict[str, Tensor]:
        """The weights with which this junction mixes several streams or sources, handed this state: by name, over the
        sources, [targets, sources] or [sources], with [B, T] before where they depend on the token. What analyses
        draw; nothing where a plain sum is all there is."""
        return {}

    def side_by_side(self, state: State) -> Tensor | None:
        """The streams of the state that this junction is handed, [B, T, n, D], where there are several: what analyses
        measure the distance of."""
        return state.x if isinstance(state, Streams) and state.x.shape[-2] > 1 else None

    def step(self, state: State, branch: Branch) -> State:
        """The state after this junction. The model hands it on and knows nothing of what is in it, so that recomputing
        a block (activation checkpointing) sees what the first time saw."""
        if not self.remembers:
            y_BTD: Tensor = self(stream_of(state), branch)
            return y_BTD
        x_BTD = stream_of(state)
        past = () if isinstance(state, Tensor | Pending) else state[1:]
        return (self(x_BTD, branch, past), *(x_BTD, *past)[: self.remembers])

    def initial_std(self, site: Site, own: float) -> float:
        """Standard deviation of a projection of this branch at the start; `own` is the model's."""
        return own


class ReadOut(nn.Module):
    """State -> [B, T, D], what the final norm reads: behind the last junction, which is `junction`."""

    def __init__(self, junction: Junction) -> None:
        super().__init__()
        self.junction = junction

    def mixing(self, state: State) -> dict[str, Tensor]:
        """The weights with which the state becomes one stream, as `ResidualConnection.mixing`."""
        return {}


def read_behind(state: State, read_out: ReadOut | None) -> State:
    """What the final norm reads: the state behind the last block, or what the model's read-out makes of it."""
    if read_out is None:
        return state
    stream_BTD: Tensor = read_out(state)
    return stream_BTD


ResidualFactory = Callable[[Junction], ResidualConnection]
