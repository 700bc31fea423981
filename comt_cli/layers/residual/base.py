"""What every residual connection is: a module that is handed the stream and the branch, and returns the new stream.

It owns the norms, because where they stand is the very thing in which the published connections differ.
Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from comt_cli.layers.gates import Site

Branch = Callable[[Tensor], Tensor]
"""What the block computes, F: [B, T, D] -> [B, T, D]."""

State = Tensor | tuple[Tensor, ...]
"""What goes from junction to junction: the residual stream; behind it, newest first, what a connection remembers."""


def stream_of(state: State) -> Tensor:
    """The residual stream, [B, T, D], without what is remembered."""
    return state if isinstance(state, Tensor) else state[0]


@dataclass(frozen=True)
class Junction:
    """A place where a skip path and a branch meet. `layer` counts blocks from 0; each block has two junctions.

    `first` is the connection at the block's other junction where this is the second: the two may share parameters.
    """

    width: int
    layer: int
    layers: int
    branch: Literal["attention", "mlp"]
    norm: Callable[[], nn.Module]
    first: ResidualConnection | None = None


class ResidualConnection(nn.Module):
    """y = connection(x, F). Subclasses say how; what they need besides x and F they keep in themselves."""

    keeps_final_norm = True
    """Whether the model's last norm, after all blocks, stays."""

    remembers = 0
    """How many earlier inputs x of connections this one wants to see, beside its own."""

    def __init__(self, junction: Junction) -> None:
        super().__init__()
        self.junction = junction

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        """The stream after this junction, [B, T, D]. One that remembers is handed the earlier inputs as well, newest
        first, as a third argument: fewer than it wants near the beginning."""
        raise NotImplementedError

    def step(self, state: State, branch: Branch) -> State:
        """The state after this junction. The model hands it on and knows nothing of what is in it, so that recomputing
        a block (activation checkpointing) sees what the first time saw."""
        if not self.remembers:
            y_BTD: Tensor = self(stream_of(state), branch)
            return y_BTD
        x_BTD, past = (state, ()) if isinstance(state, Tensor) else (state[0], state[1:])
        return (self(x_BTD, branch, past), *(x_BTD, *past)[: self.remembers])

    def initial_std(self, site: Site, own: float) -> float:
        """Standard deviation of a projection of this branch at the start; `own` is the model's."""
        return own


ResidualFactory = Callable[[Junction], ResidualConnection]
