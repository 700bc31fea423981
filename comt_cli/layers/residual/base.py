"""Residual connections: modules that take the residual stream and a branch, and return the new stream.

A connection owns its norms: their place is what many published connections differ in.
Shapes: B batch, T tokens, D width, n streams, K key-value heads, E head width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from comt_cli.kernels.add_norm import add_norm
from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.modulate import modulate
from comt_cli.layers.gates import Site

Branch = Callable[..., Tensor]
"""The function F of a block: [B, T, D] -> [B, T, D]. That of self-attention also takes keys' and values' inputs."""


class State(NamedTuple):
    """Residual stream `x`, [B, T, D], and whatever else one residual add passes to the next.

    sources: previous layer outputs, oldest first, or other tensors beside the stream, [B, T, D] each: not stacked, so
        that all blocks together keep each tensor once.
    has_streams: whether x holds several streams, [B, T, n, D].
    qkv: inputs of the next block's queries, keys and values, [B, T, D] each.
    weights: mixing weights that made `qkv` and x, less their start, [B, T, 4, sources]: for analyses, detached.
    deferred: product [B, T, C] and gate of an add that the next norm does: the stream is x + gamma * z.
    shared: keys and values of earlier blocks, [B, K, T, E] each (`shared_values`).
    """

    x: Tensor
    sources: tuple[Tensor, ...] = ()
    has_streams: bool = False
    qkv: tuple[Tensor, Tensor, Tensor] | None = None
    weights: Tensor | None = None
    deferred: tuple[Tensor, Modulation] | None = None
    shared: tuple[Tensor, ...] = ()

    @property
    def stream(self) -> Tensor:
        """Residual stream, [B, T, D]: a deferred add done, several streams summed."""
        if self.has_streams:
            return self.x.sum(-2)
        if self.deferred is None:
            return self.x
        product_BTC, modulation = self.deferred
        zhat_TD = modulate(product_BTC.flatten(0, -2), modulation, [self.x.shape[-1]])
        return self.x + zhat_TD.view_as(self.x)

    def normalised(self, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """Residual stream and norm(stream), [B, T, D] each."""
        if self.deferred is not None and isinstance(norm, nn.RMSNorm):
            assert norm.eps is not None
            x_TD, product_TC = (tensor.flatten(0, -2) for tensor in (self.x, self.deferred[0]))
            y_TD, n_TD = add_norm(x_TD, product_TC, self.deferred[1], norm.weight, norm.eps)
            return y_TD.view_as(self.x), n_TD.view_as(self.x)
        x_BTD = self.stream
        return x_BTD, norm(x_BTD)


@dataclass(frozen=True)
class ResidualSite:
    """Place of one residual add: number `index` of `count` in its stack, in block `layer` of `layers`, from 0.

    `part` is the model's name of the branch: `attention`, `mlp` ... A block of a ResNet has one add, `map`, on feature
    maps with the channels last, [B, H, W, D]; its branch has its own norms, and `norm` makes the identity. `before` are
    the connections of the block's earlier adds, with which parameters may be shared; `depths` is the number of blocks
    of every stack by its name, where a model has several. Alone, a connection needs no more than the width, and its
    norm if it shall have one; any module may be its branch. Several adds are numbered, and pass on a state:

    >>> import torch
    >>> from comt_cli.layers import Highway, HyperConnection
    >>> branch, x = nn.Linear(64, 64), torch.randn(2, 10, 64)
    >>> Highway(ResidualSite(64, norm=lambda: nn.RMSNorm(64)), bias=-4.0)(x, branch).shape
    torch.Size([2, 10, 64])
    >>> state = State(x)
    >>> for index in range(3):
    ...     state = HyperConnection(ResidualSite(64, index=index, count=3), n=2).step(state, branch)
    >>> state.x.shape, state.stream.shape
    (torch.Size([2, 10, 2, 64]), torch.Size([2, 10, 64]))"""

    width: int
    stack: str = "blocks"
    index: int = 0
    count: int = 1
    layer: int = 0
    layers: int = 1
    part: str = "mlp"
    norm: Callable[[], nn.Module] = nn.Identity
    before: Sequence[ResidualConnection] = ()
    depths: Mapping[str, int] = field(default_factory=dict)


class ResidualConnection(nn.Module):
    """y = connection(x, F). Subclasses define it, and hold what they need besides x and F. One with a `name` is found
    by being in this folder; `name` and `needs` are read without importing it, and so are literals there."""

    name: ClassVar[str]
    """Recipes' name of the connection."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Features that only some models have (`Sites.features`): `states`, where it passes more than a stream from block
    to block; `values`, where attention takes separate q/k/v inputs."""

    keeps_final_norm = True
    """Whether the model keeps its last norm, after all blocks."""

    ends_in_norm = False
    """Whether its output has been normalised. The published encoder-decoder has no final norm behind such a connection;
    language models keep theirs."""

    def __init__(self, site: ResidualSite) -> None:
        super().__init__()
        self.site = site

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        """Residual stream after this add, [B, T, D]."""
        raise NotImplementedError

    def step(self, state: State, branch: Branch) -> State:
        """State after this add. Models pass it on unread, so that recomputing a block sees the same inputs."""
        return State(self(state.stream, branch))

    def initial_stream(self, state: State) -> Tensor:
        """Residual stream at the start of a stack, [B, T, D]. Raises `ValueError` at any later add: the method would
        start anew there, and the model silently be the baseline."""
        if self.site.index > 0:
            raise ValueError(f"residual add {self.site.index} got a plain stream, which only starts a stack of blocks")
        return state.stream

    def sources(self, state: State) -> tuple[Tensor, ...]:
        """Previous layer outputs of a state, [B, T, D] each; at the start of a stack the initial stream alone."""
        return state.sources or (self.initial_stream(state),)

    def output_aggregation(self, norm: Callable[[], nn.Module]) -> OutputAggregation | None:
        """Module that makes one stream of the state behind this last add; None: it is `State.stream`. `norm` makes
        norms like the final one."""
        return None

    def read(self, state: State) -> Tensor:
        """Stand-in for the residual stream, [B, T, D], that analyses compare from block to block."""
        return state.stream

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Mixing weights of several streams or sources, by name: [targets, sources] or [sources], with [B, T] before
        where they depend on the token. For analyses; empty where a plain sum is all there is."""
        return {}

    def side_by_side(self, state: State) -> Tensor | None:
        """Streams of the state, [B, T, n, D], where there are several: analyses measure their distance."""
        return state.x if state.has_streams and state.x.shape[-2] > 1 else None

    def initial_std(self, site: Site, own: float) -> float:
        """Standard deviation of a projection of this branch at the start; `own` is the model's."""
        return own


class NormedResidual(ResidualConnection):
    """A residual connection with a norm of its place, N."""

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.norm = site.norm()


class OutputAggregation(nn.Module):
    """State behind the last residual add -> stream that the final norm reads, [B, T, D]."""

    def __init__(self, site: ResidualSite) -> None:
        super().__init__()
        self.site = site

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Mixing weights of that stream, as `ResidualConnection.mixing`."""
        return {}


def final_stream(state: State, aggregation: OutputAggregation | None, norm: nn.Module) -> Tensor:
    """norm(stream) behind the last block, [B, T, D]."""
    if aggregation is not None:
        state = State(aggregation(state))
    return state.normalised(norm)[1]


ResidualFactory = Callable[[ResidualSite], ResidualConnection]
