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


@dataclass(frozen=True)
class Junction:
    """A place where a skip path and a branch meet. `layer` counts blocks from 0; each block has two junctions."""

    width: int
    layer: int
    layers: int
    branch: Literal["attention", "mlp"]
    norm: Callable[[], nn.Module]


class ResidualConnection(nn.Module):
    """y = connection(x, F). Subclasses say how; what they need besides x and F they keep in themselves."""

    keeps_final_norm = True
    """Whether the model's last norm, after all blocks, stays."""

    def __init__(self, junction: Junction) -> None:
        super().__init__()
        self.junction = junction

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        """The stream after this junction, [B, T, D]."""
        raise NotImplementedError

    def initial_std(self, site: Site) -> float | None:
        """Standard deviation of a projection of this branch at the start; None for the model's own."""
        return None


ResidualFactory = Callable[[Junction], ResidualConnection]
