"""Residual connections: modules that take the residual stream and a branch and return the new stream.

A connection owns its norms, since published connections differ in where the norms are.
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
"""Function F of a block: [B, T, D] -> [B, T, D]. Self-attention also takes inputs of keys and values."""


class State(NamedTuple):
    """Residual stream `x`, [B, T, D], and all else that one residual add passes to the next.

    sources: previous layer outputs, oldest first, or other tensors next to the stream, [B, T, D] each. They are not
        stacked, so that all blocks together store each tensor once.
    has_streams: whether x holds several streams, [B, T, n, D].
    qkv: inputs of the next block's queries, keys and values, [B, T, D] each.
    weights: mixing weights of `qkv` and x minus their start, [B, T, 4, sources], detached: for analyses.
    deferred: product [B, T, C] and gate of an add that the next norm computes: the stream is x + gamma * z.
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
        """Residual stream, [B, T, D], with a deferred add computed or several streams summed."""
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
    """Site of one residual add: number `index` of `count` in its stack, in block `layer` of `layers`, from 0.

    `part` is the model's name of the branch: `attention`, `mlp` ... A block of a ResNet has one add, `map`, on feature
    maps with the channels last, [B, H, W, D]; its branch has its own norms, and `norm` makes the identity. `before`
    holds the connections of the block's earlier adds, which may share parameters. `depths` is the number of blocks of
    every stack, by name, in models with several stacks.

    Outside comt's models a connection needs only the width, and its norm if it has one. Any module can be its branch.
    If a connection passes a state, its adds are numbered:

    Examples:
        >>> import torch
        >>> from comt_cli.layers import Highway, HyperConnection
        >>> branch, x = nn.Linear(64, 64), torch.randn(2, 10, 64)
        >>> Highway(ResidualSite(64, norm=lambda: nn.RMSNorm(64)), bias=-4.0)(x, branch).shape
        torch.Size([2, 10, 64])
        >>> state = State(x)
        >>> for index in range(3):
        ...     state = HyperConnection(ResidualSite(64, index=index, count=3), n=2).step(state, branch)
        >>> state.x.shape, state.stream.shape
        (torch.Size([2, 10, 2, 64]), torch.Size([2, 10, 64]))
    """

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
    """Base class of residual connections: y = connection(x, F).

    A class with a `name` is found in this folder. `name` and `needs` are read without importing the file, so they must
    be literals. Subclasses define `forward`, or `step` if they pass more than one stream between blocks.
    """

    name: ClassVar[str]
    """Name of the connection in recipes."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Features that only some models have (`Sites.features`): `states` to pass more than one stream between blocks,
    `values` for separate q/k/v inputs of attention, `heads` for `norms_heads`."""

    keeps_final_norm = True
    """Whether the model keeps its norm after the last block."""

    norms_heads = False
    """Whether attention normalises the queries, keys and values of each head."""

    ends_in_norm = False
    """Whether its output is normalised. The published encoder-decoder then has no final norm; language models keep
    theirs."""

    def __init__(self, site: ResidualSite) -> None:
        super().__init__()
        self.site = site

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        """Residual stream after this add, [B, T, D]."""
        raise NotImplementedError

    def step(self, state: State, branch: Branch) -> State:
        """State after this add. Models do not change it, so that a recomputed block gets the same inputs."""
        return State(self(state.stream, branch))

    def initial_stream(self, state: State) -> Tensor:
        """Residual stream at the start of a stack, [B, T, D]. Raises `ValueError` at any later add: there the
        connection would start again, and the network would silently be the baseline."""
        if self.site.index > 0:
            raise ValueError(f"residual add {self.site.index} got a plain stream; only the first add of a stack may")
        return state.stream

    def sources(self, state: State) -> tuple[Tensor, ...]:
        """Previous layer outputs, [B, T, D] each; at the start of a stack only the initial stream."""
        return state.sources or (self.initial_stream(state),)

    def output_aggregation(self, norm: Callable[[], nn.Module]) -> OutputAggregation | None:
        """Module that reduces the last state to one stream; None: `State.stream`. `norm` makes final norms."""
        return None

    def read(self, state: State) -> Tensor:
        """Stream that analyses compare from block to block, [B, T, D]."""
        return state.stream

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Mixing weights of streams or sources by name, for analyses: [targets, sources] or [sources], preceded by [B,
        T] if they depend on the token. Empty for a plain sum."""
        return {}

    def side_by_side(self, state: State) -> Tensor | None:
        """Streams of the state, [B, T, n, D], if there are several. Analyses measure their distance."""
        return state.x if state.has_streams and state.x.shape[-2] > 1 else None

    def initial_std(self, site: Site, own: float) -> float:
        """Initial standard deviation of a projection of this branch; `own` is the model's."""
        return own


class NormedResidual(ResidualConnection):
    """Residual connection with one norm, N."""

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.norm = site.norm()


class OutputAggregation(nn.Module):
    """State after the last residual add -> stream that the final norm reads, [B, T, D]."""

    def __init__(self, site: ResidualSite) -> None:
        super().__init__()
        self.site = site

    def mixing(self, state: State) -> dict[str, Tensor]:
        """Mixing weights of that stream, as in `ResidualConnection.mixing`."""
        return {}


def final_stream(state: State, aggregation: OutputAggregation | None, norm: nn.Module) -> Tensor:
    """norm(stream) after the last block, [B, T, D]."""
    if aggregation is not None:
        state = State(aggregation(state))
    return state.normalised(norm)[1]


ResidualFactory = Callable[[ResidualSite], ResidualConnection]
