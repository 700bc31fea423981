"""Linear maps of one input, computed in one matrix product, each with its gate if it has one.

Shapes: T tokens (any leading dimensions), D input width, N output width of one map, M = sum of N, R = sum of r.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.layers.gates import Gate, GateFactory, Site
from comt_cli.layers.initialise import Draw, Initialised

StdOf = Callable[[Site], float]


class Projections(Initialised):
    """The maps of `sites`, which share their input: `x -> (z_1, z_2, ...)`, each z_i = gamma_i(x) * (x W_i^T).

    The rows of all W_i stand in one parameter, and the gates' summaries A_i are appended to it in the product
    (Transponder, Eq. 8): x is read once.
    """

    def __init__(self, sites: Sequence[Site], gates: Mapping[str, GateFactory], std_of: StdOf) -> None:
        super().__init__()
        self.sites = tuple(sites)
        self.std_of = std_of
        self.widths = [site.d_out for site in sites]
        self.weight = nn.Parameter(torch.empty(sum(self.widths), sites[0].d_in))
        self.gates = nn.ModuleDict({site.name: gates[site.name](site) for site in sites if site.name in gates})

    def forward(self, x_TD: Tensor) -> tuple[Tensor, ...]:
        """[T, D] -> one [T, N] a site."""
        if not self.gates:
            return torch.split(F.linear(x_TD, self.weight), self.widths, dim=-1)
        summaries = [A for A in (gate.summary() for gate in self._gates()) if A is not None]
        zu = F.linear(x_TD, torch.cat([self.weight, *summaries]))
        z, u = torch.split(zu, [sum(self.widths), sum(len(A) for A in summaries)], dim=-1)
        return tuple(self._gated(z, u))

    def _gated(self, z_TM: Tensor, u_TR: Tensor) -> list[Tensor]:
        outputs, used = [], 0
        for site, z_TN in zip(self.sites, torch.split(z_TM, self.widths, dim=-1), strict=True):
            if site.name not in self.gates:
                outputs.append(z_TN)
                continue
            gate = self.gate(site.name)
            A = gate.summary()
            if A is None:
                outputs.append(gate(z_TN, None))
            else:
                outputs.append(gate(z_TN, u_TR[..., used : used + len(A)]))
                used += len(A)
        return outputs

    def gate_values(self, x_TD: Tensor) -> dict[str, dict[str, Tensor]]:
        """For each gated site its factors by kind (`Gate.values`) on the input `x`."""
        values = {}
        for name in self.gates:
            gate = self.gate(name)
            A = gate.summary()
            values[name] = gate.values(None if A is None else F.linear(x_TD, A))
        return values

    def gate(self, name: str) -> Gate:
        """The gate at a site. Raises `KeyError` if it has none."""
        gate = self.gates[name]
        assert isinstance(gate, Gate)
        return gate

    def _gates(self) -> list[Gate]:
        return [self.gate(name) for name in self.gates]

    def site_weights(self) -> dict[str, Tensor]:
        """Views of `weight`, [N, D] a site: what an ordinary linear layer would hold."""
        names = [site.name for site in self.sites]
        return dict(zip(names, torch.split(self.weight, self.widths), strict=True))

    def initialise(self, draw: Draw) -> None:
        weights = self.site_weights()
        for site in self.sites:
            draw.normal_(weights[site.name], site.name, self.std_of(site))


class TokenEmbedding(Initialised):
    """Token ids to vectors, N(0, std^2) at the start. No row is special: the original scripts freeze a real token's
    row at zero through `padding_idx=-1`; here no method does."""

    def __init__(self, vocabulary: int, width: int, std: float) -> None:
        super().__init__()
        self.std = std
        self.weight = nn.Parameter(torch.empty(vocabulary, width))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """[B, T] ids -> [B, T, D]."""
        return F.embedding(tokens_BT, self.weight)

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.weight, "weight", self.std)
