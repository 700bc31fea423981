"""Linear maps of one input, computed in one matrix product (`packing`), each with its gate if it has one.

Shapes: T tokens (any leading dimensions), D input width, N output width of one map, C columns of the product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.embedding import embedding
from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.modulate import modulate
from comt_cli.kernels.modulation import modulation_of
from comt_cli.layers.gates import CarriesGates, GateFactory, Site
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.packing import Packing

StdOf = Callable[[Site], float]
Spread = Literal["normal", "uniform", "truncated"]
"""Distribution of initial numbers around 0; `truncated`: normal ones within two standard deviations."""


class Projections(CarriesGates, Initialised):
    """The maps of `sites`, which share their input: `x -> (z_1, z_2, ...)`, each z_i = gamma_i(x) * (x W_i^T).

    The rows of all W_i stand in one parameter, and the gates' down-projections A_i are appended to it in the product
    (Transponder, Eq. 8): x is read once. So is it for gates that read x and act on something later, those at the
    sites `later`: their bottlenecks come behind the z_i.
    """

    fused = False
    """Whether a kernel applies the gates where no next operation does."""

    def __init__(
        self,
        sites: Sequence[Site],
        gates: Mapping[str, GateFactory],
        std_of: StdOf,
        later: Sequence[Site] = (),
        *,
        bias: bool = False,
        spread: Spread = "normal",
    ) -> None:
        """`std_of` is the standard deviation of a site's weights at the start, `spread` how they lie around 0. With
        `bias` each z_i is gamma_i(x) * (x W_i^T + b_i), b_i zero at the start."""
        super().__init__()
        self.sites = tuple(sites)
        self.std_of = std_of
        self.spread = spread
        self._frozen: tuple[Tensor, Tensor | None, Modulation | None] | None = None
        self.widths = [site.d_out for site in sites]
        self.packing = Packing(self.widths)
        self.weight = nn.Parameter(torch.empty(sum(self.widths), sites[0].d_in))
        self.bias = nn.Parameter(torch.empty(sum(self.widths))) if bias else None
        self.gates = nn.ModuleDict(
            {site.name: gates[site.name](site) for site in (*sites, *later) if site.name in gates}
        )

    def forward(self, x_TD: Tensor, *others_TD: Tensor) -> tuple[Tensor, ...]:
        """[T, D] -> one [T, N] a site, and one [T, r] a gate at a later site. With as many inputs as there are sites
        each is of one, a site's gate reads what the site does, and gates at later sites read the first."""
        if others_TD:
            return self._each_of_its_own((x_TD, *others_TD))
        return self.gated(self.product(x_TD))

    def _each_of_its_own(self, inputs_TD: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        assert self.bias is None
        assert not self.packing.aligns_sites
        down_projections = self._down_projections()
        found = []
        for (name, weight), x_TD in zip(self.site_weights().items(), inputs_TD, strict=True):
            z_TN, A = F.linear(x_TD, weight), down_projections.pop(name, None)
            if name in self.gates:
                z_TN = self.gate(name)(z_TN, None if A is None else F.linear(x_TD, A))
            found.append(z_TN)
        return *found, *(F.linear(inputs_TD[0], A) for A in down_projections.values())

    def product(self, x_TD: Tensor) -> Tensor:
        """x times all matrices at once, [T, C]: the columns of the sites, the gates' bottlenecks, and zeros that
        fill a row up to where the next should begin. Columns of x beyond D are taken to be zero."""
        width = x_TD.shape[-1]
        if self._frozen is not None:
            matrix = self._frozen[0]
            return F.linear(x_TD, matrix[:, :width] if width < matrix.shape[1] else matrix, self._frozen[1])
        return self.packing.product(x_TD, [self.weight, *self._down_projections().values()], self.bias)

    def freeze(self) -> None:
        """Put the matrices together once instead of in every product, which decoding would notice. Parameters that
        change afterwards are not seen, until `train`, loading, or a move to another device or type undoes it."""
        self._frozen = None
        with torch.no_grad():
            matrices = [self.weight, *self._down_projections().values()]
            matrix, bias = self.packing.packed(matrices, self.bias)
            modulation = self.modulation()
            if modulation is not None and matrix.device.type == "cpu":
                modulation = modulation.by_columns()
            self._frozen = matrix, bias, modulation

    def train(self, mode: bool = True) -> Self:
        """As of any module; thaws what is frozen."""
        self._frozen = None
        return super().train(mode)

    def _load_from_state_dict(self, *arguments: Any, **options: Any) -> None:
        self._frozen = None
        super()._load_from_state_dict(*arguments, **options)

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        self._frozen = None
        moved: Self = super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        return moved

    def gated(self, product_TC: Tensor) -> tuple[Tensor, ...]:
        """The product's sites with their gates applied, and what gates at later sites read."""
        names = [site.name for site in self.sites]
        modulation = self.modulation() if self.fused and self.gates else None
        if modulation is not None:
            zhat = modulate(product_TC.flatten(0, -2), modulation, self.packing.filled(product_TC))
            gated, _ = self.packing.split(zhat.view(*product_TC.shape[:-1], -1))
            return (*gated, *self.read_later(product_TC))
        down_projections = self._down_projections()
        parts, bottlenecks = self.packing.split(product_TC, [len(A) for A in down_projections.values()])
        u = dict(zip(down_projections, bottlenecks, strict=True))
        gated = tuple(
            self.gate(name)(z_TN, u.get(name)) if name in self.gates else z_TN
            for name, z_TN in zip(names, parts, strict=True)
        )
        return *gated, *(u_Tr for name, u_Tr in u.items() if name not in names)

    def read_later(self, product_TC: Tensor) -> tuple[Tensor, ...]:
        """Bottlenecks of the gates at later sites, [T, r] each."""
        names = [site.name for site in self.sites]
        parts, start = [], sum(self.packing.filled(product_TC))
        for name, A in self._down_projections().items():
            if name not in names:
                parts.append(product_TC[..., start : start + len(A)])
            start += len(A)
        return tuple(parts)

    def modulation(self) -> Modulation | None:
        """The sites' gates as the kernels take them; None if the kernels do not know their form."""
        if self._frozen is not None:
            return self._frozen[2]
        gates = [self.gate(site.name) if site.name in self.gates else None for site in self.sites]
        forms = [None if gate is None else gate.bottleneck() for gate in gates]
        if any(gate is not None and form is None for gate, form in zip(gates, forms, strict=True)):
            return None
        return modulation_of(forms, self.packing.filled(self.weight))

    def _down_projections(self) -> dict[str, Tensor]:
        read = {name: self.gate(name).down_projection() for name in self.gates}
        return {name: A for name, A in read.items() if A is not None}

    def site_weights(self) -> dict[str, Tensor]:
        """Views of `weight`, [N, D] a site: what an ordinary linear layer would hold."""
        names = [site.name for site in self.sites]
        return dict(zip(names, torch.split(self.weight, self.widths), strict=True))

    def initialise(self, draw: Draw) -> None:
        weights = self.site_weights()
        for site in self.sites:
            weight, std = weights[site.name], self.std_of(site)
            match self.spread:
                case "uniform":
                    draw.uniform_(weight, site.name, math.sqrt(3) * std)
                case "truncated":
                    draw.truncated_(weight, site.name, std)
                case "normal":
                    draw.normal_(weight, site.name, std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class GatedPath(CarriesGates):
    """A gate on a whole branch: y = gamma(h) * F(h), h what the branch reads (Transponder, Eq. 7, "path")."""

    def __init__(self, site: Site, gate: GateFactory) -> None:
        super().__init__()
        self.sites = (site,)
        self.gates = nn.ModuleDict({site.name: gate(site)})

    def forward(self, h_TD: Tensor, y_TD: Tensor) -> Tensor:
        """`h` is the branch's input and `y` its output, [T, D]."""
        gate = self.gate(self.sites[0].name)
        A = gate.down_projection()
        gated_TD: Tensor = gate(y_TD, None if A is None else F.linear(h_TD, A))
        return gated_TD


class TokenEmbedding(Initialised):
    """Token ids to vectors, N(0, std^2) at the start, or `truncated`. No row is special: the original scripts freeze a
    real token's row at zero through `padding_idx=-1`; here no method does."""

    def __init__(self, vocabulary: int, width: int, std: float, *, truncated: bool = False) -> None:
        super().__init__()
        self.std, self.truncated = std, truncated
        self.weight = nn.Parameter(torch.empty(vocabulary, width))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """[B, T] ids -> [B, T, D]."""
        return embedding(tokens_BT, self.weight)

    def initialise(self, draw: Draw) -> None:
        (draw.truncated_ if self.truncated else draw.normal_)(self.weight, "weight", self.std)
