"""Linear maps of one input, computed in one matrix product, each with its gate if it has one.

Shapes: T tokens (any leading dimensions), D input width, N output width of one map, M = sum of N, R = sum of r.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.layers.gates import CarriesGates, GateFactory, Site
from comt_cli.layers.initialise import Draw, Initialised

StdOf = Callable[[Site], float]


class Projections(CarriesGates, Initialised):
    """The maps of `sites`, which share their input: `x -> (z_1, z_2, ...)`, each z_i = gamma_i(x) * (x W_i^T).

    The rows of all W_i stand in one parameter, and the gates' summaries A_i are appended to it in the product
    (Transponder, Eq. 8): x is read once. So is it for gates that read x and act on something later, those at the
    sites `later`: what they read of x is handed out behind the z_i.
    """

    def __init__(
        self, sites: Sequence[Site], gates: Mapping[str, GateFactory], std_of: StdOf, later: Sequence[Site] = ()
    ) -> None:
        super().__init__()
        self.sites = tuple(sites)
        self.std_of = std_of
        self.widths = [site.d_out for site in sites]
        self.weight = nn.Parameter(torch.empty(sum(self.widths), sites[0].d_in))
        self.gates = nn.ModuleDict(
            {site.name: gates[site.name](site) for site in (*sites, *later) if site.name in gates}
        )

    def forward(self, x_TD: Tensor) -> tuple[Tensor, ...]:
        """[T, D] -> one [T, N] a site, and one [T, r] a gate at a later site."""
        if not self.gates:
            return torch.split(F.linear(x_TD, self.weight), self.widths, dim=-1)
        read = {name: self.gate(name).summary() for name in self.gates}
        summaries = {name: A for name, A in read.items() if A is not None}
        zu = F.linear(x_TD, torch.cat([self.weight, *summaries.values()]))
        parts = torch.split(zu, [*self.widths, *(len(A) for A in summaries.values())], dim=-1)
        z, u = parts[: len(self.sites)], dict(zip(summaries, parts[len(self.sites) :], strict=True))
        names = [site.name for site in self.sites]
        gated = [
            self.gate(name)(z_TN, u.get(name)) if name in self.gates else z_TN
            for name, z_TN in zip(names, z, strict=True)
        ]
        return (*gated, *(u_Tr for name, u_Tr in u.items() if name not in names))

    def site_weights(self) -> dict[str, Tensor]:
        """Views of `weight`, [N, D] a site: what an ordinary linear layer would hold."""
        names = [site.name for site in self.sites]
        return dict(zip(names, torch.split(self.weight, self.widths), strict=True))

    def initialise(self, draw: Draw) -> None:
        weights = self.site_weights()
        for site in self.sites:
            draw.normal_(weights[site.name], site.name, self.std_of(site))


class GatedPath(CarriesGates):
    """A gate on a whole branch: y = gamma(h) * F(h), h what the branch reads (Transponder, Eq. 7, "path")."""

    def __init__(self, site: Site, gate: GateFactory) -> None:
        super().__init__()
        self.sites = (site,)
        self.gates = nn.ModuleDict({site.name: gate(site)})

    def forward(self, h_TD: Tensor, y_TD: Tensor) -> Tensor:
        """`h` is the branch's input and `y` its output, [T, D]."""
        gate = self.gate(self.sites[0].name)
        A = gate.summary()
        gated_TD: Tensor = gate(y_TD, None if A is None else F.linear(h_TD, A))
        return gated_TD


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
