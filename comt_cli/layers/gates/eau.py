"""The Evaluator-Adjuster Unit. Shapes: T tokens, N width of the site, r bottleneck width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from comt_cli.layers.gates.base import Gate, Site
from comt_cli.layers.initialise import Draw
from comt_cli.layers.learned import Affine


class EvaluatorAdjuster(Gate):
    """z + a * e of what the site produces, z: a = tanh(W3 z + b3) adjusts, e = sigmoid(W2 relu(W1 z + b1) + b2)
    evaluates (Dhayalkar 2024, second-hand). W1 is r x N, r the `share` of N.

    A gate in that it is at a site; it adds where others multiply, so it has no factors (`values`), and it reads
    what it acts on, so it asks nothing of the site's input.
    """

    def __init__(self, site: Site, share: float) -> None:
        super().__init__()
        width = site.d_out
        self.W1, self.W2 = Affine(width, rank := max(1, round(share * width))), Affine(rank, width)
        self.W3 = Affine(width, width)

    def down_projection(self) -> None:
        """None: what it reads is not the site's input."""

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        """None: it multiplies nothing."""
        return {}

    def evaluation(self, z_TN: Tensor) -> Tensor:
        """e, [T, N], each between 0 and 1."""
        return torch.sigmoid(self.W2(F.relu(self.W1(z_TN))))

    def forward(self, z_TN: Tensor, u_Tr: Tensor | None) -> Tensor:
        """[T, N] -> [T, N]."""
        e_TN = self.evaluation(z_TN)
        return z_TN + torch.tanh(self.W3(z_TN)) * e_TN

    def initialise(self, draw: Draw) -> None:
        """Its three maps start as any `Affine`: N(0, 0.02^2), biases 0."""
