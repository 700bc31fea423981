"""Linear maps of one input, computed in one matrix product in the layout of the kernels, each with an optional gate.

Shapes: T tokens (any leading dimensions), D input width, N output width of a map, r width of a gate's bottleneck, C
columns of the product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from comt_cli.kernels.gates import Modulation, multiplied_in
from comt_cli.kernels.modulate import modulate
from comt_cli.kernels.modulation import modulation_of
from comt_cli.layers.gates import CarriesGates, GateFactory, Site, first, read_by
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.roles import Role

StdOf = Callable[[Site], float]
Spread = Literal["normal", "uniform", "truncated"]
"""Distribution of initial values around 0; `truncated`: normal within two standard deviations."""


class Projections(CarriesGates, Initialised):
    """Maps of `sites` with a common input: x -> (z_1, z_2, ...), each z_i = gamma_i(x) * (x W_i^T). The rows of all W_i
    are one parameter. The gates' down-projections A_i are appended to it in the product (Transponder, Eq. 8), so x is
    read once. This includes gates at sites `later`, whose bottlenecks follow the z_i. A gate that reads only the first
    channels of x has a product of its own: padded with zeros, its matrix would cost as much as one that reads all."""

    fused = False
    """Whether a kernel applies the gates if the next operation does not."""

    def __init__(
        self, sites: Sequence[Site], gates: Mapping[str, GateFactory], std_of: StdOf, later: Sequence[Site] = (), *,
        bias: bool = False, spread: Spread = "normal",
    ) -> None:  # fmt: skip
        """`std_of` is the initial standard deviation of a site's weights, `spread` their distribution around 0. With
        `bias` each z_i is gamma_i(x) * (x W_i^T + b_i), where b_i starts at zero."""
        super().__init__()
        self.sites, self.std_of, self.spread = tuple(sites), std_of, spread
        self.names = [site.name for site in sites]
        self._frozen: tuple[Tensor, Tensor | None, Modulation | None] | None = None
        self.widths = [site.d_out for site in sites]
        self.joined_rows = {"weight": self.widths}
        self.packing = Packing(self.widths)
        self.weight = nn.Parameter(torch.empty(sum(self.widths), sites[0].d_in))
        self.bias = nn.Parameter(torch.empty(sum(self.widths))) if bias else None
        gated = (site for site in (*sites, *later) if site.name in gates)
        self.gates = nn.ModuleDict({site.name: gates[site.name](site) for site in gated})
        self.lora: nn.ModuleDict | None = None

    def forward(self, x_TD: Tensor, *others_TD: Tensor) -> tuple[Tensor, ...]:
        """[T, D] -> one [T, N] per site, and one [T, r] per gate at a later site. With one input per site, each site
        and its gate read their own input, and gates at later sites read the first."""
        if not others_TD:
            return self.gated(self.product(x_TD), x_TD)
        assert self.bias is None
        assert not self.packing.aligns_sites
        z = []
        for (name, weight), own_TD in zip(self.site_weights().items(), (x_TD, *others_TD), strict=True):
            z_TN = F.linear(own_TD, weight)
            if self.lora is not None:
                z_TN = z_TN + self.lora[name](own_TD)
            z.append(self.gate(name).scaled(z_TN, read_by(self.gate(name), own_TD)) if name in self.gates else z_TN)
        later = (read_by(self.gate(name), x_TD) for name in self.gates if name not in self.names)
        return *z, *(u_Tr for u_Tr in later if u_Tr is not None)

    def product(self, x_TD: Tensor) -> Tensor:
        """x times all matrices at once, [T, C]: the columns of the sites, the bottlenecks of the gates, and zeros up to
        the start of the next row. Columns of x beyond D must be zero."""
        if self._frozen is None:
            matrices = [self.weight, *self.down_projections().values()]
            return self._adapted(self.packing.product(x_TD, matrices, self.bias), x_TD)
        width, matrix = x_TD.shape[-1], self._frozen[0]
        return F.linear(x_TD, matrix[:, :width] if width < matrix.shape[1] else matrix, self._frozen[1])

    def adapt(self, rank: int, scale: float) -> None:
        """Add `scale` B A to the matrix of each site (LoRA). The module must be on the meta device."""
        self.lora = nn.ModuleDict({site.name: LowRankUpdate(site.d_in, site.d_out, rank, scale) for site in self.sites})

    def _adapted(self, product_TC: Tensor, x_TD: Tensor) -> Tensor:
        """The product with LoRA's update of the sites' columns, [T, C]."""
        if self.lora is None:
            return product_TC
        each = zip(self.lora.values(), self.widths, self.packing.filled(product_TC), strict=True)
        dz = [F.pad(update(x_TD), (0, filled - width)) for update, width, filled in each]
        dz_TC = torch.cat(dz, dim=-1) if len(dz) > 1 else dz[0]
        return product_TC + F.pad(dz_TC, (0, product_TC.shape[-1] - dz_TC.shape[-1]))

    def freeze(self) -> None:
        """Join the matrices once instead of in every product, for decoding. Later changes of parameters have no effect
        until `train`, loading, or a change of device or type."""
        assert self.lora is None
        self._frozen, weight = None, self.weight
        with torch.no_grad():
            width = aligned(weight.shape[1], weight)  # for inputs with aligned columns
            matrix = self.packing.join(width, weight.dtype, weight, *self.down_projections().values())
            modulation = self.modulation()
            if modulation is not None and matrix.device.type == "cpu":
                modulation = modulation.by_columns()
            self._frozen = matrix, self.packing.bias(self.bias, len(matrix)), modulation

    def train(self, mode: bool = True) -> Self:
        self._frozen = None
        return super().train(mode)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._frozen = None
        super()._load_from_state_dict(*arguments)

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        self._frozen = None
        return super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]

    def gated(self, product_TC: Tensor, x_TD: Tensor) -> tuple[Tensor, ...]:
        """The sites of x's product with their gates applied, and the bottlenecks of gates at later sites."""
        modulation = self.modulation() if self.fused and self.gates else None
        if modulation is not None:
            zhat = modulate(product_TC.flatten(0, -2), modulation, self.packing.filled(product_TC))
            return (*self.packing.split(zhat.view(*product_TC.shape[:-1], -1))[0], *self.read_later(product_TC, x_TD))
        down_projections = self.down_projections()
        parts, bottlenecks = self.packing.split(product_TC, [len(A) for A in down_projections.values()])
        u = dict(zip(down_projections, bottlenecks, strict=True)) | self._read_apart(x_TD)
        gated = [self.gated_at(name, z_TN, u.pop(name, None)) for name, z_TN in zip(self.names, parts, strict=True)]
        return *gated, *u.values()

    def read_later(self, product_TC: Tensor, x_TD: Tensor) -> tuple[Tensor, ...]:
        """Bottlenecks of the gates at later sites, [T, r] each, from x and its product."""
        parts, start = [], sum(self.packing.filled(product_TC))
        for name, A in self.down_projections().items():
            if name not in self.names:
                parts.append(product_TC[..., start : start + len(A)])
            start += len(A)
        return *parts, *(u_Tr for name, u_Tr in self._read_apart(x_TD).items() if name not in self.names)

    def modulation(self) -> Modulation | None:
        """The sites' gates in the form of the kernels; None if they have another form."""
        if self._frozen is not None:
            return self._frozen[2]
        gates = [self.gate(name) if name in self.gates else None for name in self.names]
        forms = [None if gate is None else gate.bottleneck() for gate in gates]
        if any(gate is not None and form is None for gate, form in zip(gates, forms, strict=True)):
            return None
        return modulation_of(forms, self.packing.filled(self.weight))

    def down_projections(self) -> dict[str, Tensor]:
        """A of every gate that reads all of x, [r, D] each, by site name."""
        read = {name: self.gate(name).down_projection() for name in self.gates}
        return {name: A for name, A in read.items() if A is not None and A.shape[1] == self.weight.shape[1]}

    def _read_apart(self, x_TD: Tensor) -> dict[str, Tensor]:
        """Bottlenecks of the gates that read only the first channels of x, by site name."""
        apart = self.gates.keys() - self.down_projections().keys()
        read = {name: read_by(self.gate(name), x_TD) for name in self.gates if name in apart}
        return {name: u_Tr for name, u_Tr in read.items() if u_Tr is not None}

    def site_weights(self) -> dict[str, Tensor]:
        """Views of `weight`, [N, D] per site: the matrix of an ordinary linear layer."""
        return dict(zip(self.names, torch.split(self.weight, self.widths), strict=True))

    def initialise(self, draw: Draw) -> None:
        fill = {"normal": draw.normal_, "truncated": draw.truncated_, "uniform": draw.uniform_}[self.spread]
        for site, weight in zip(self.sites, self.site_weights().values(), strict=True):
            fill(weight, site.name, self.std_of(site) * (math.sqrt(3) if self.spread == "uniform" else 1))
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class LowRankUpdate(Initialised):
    """s B A x, [T, D] -> [T, N], s = alpha / rank: LoRA's update of a product (Hu et al. 2021, Eq. 3). B starts at zero
    and A as U(+-1 / sqrt(D)), as in the authors' code (Kaiming's, a = sqrt(5)); the paper has a Gaussian."""

    def __init__(self, d_in: int, d_out: int, rank: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.A = nn.Parameter(torch.empty(rank, d_in, device="meta"))
        self.B = nn.Parameter(torch.empty(d_out, rank, device="meta"))

    def forward(self, x_TD: Tensor) -> Tensor:
        """`x` may have columns of zeros after the first D."""
        return F.linear(self.scale * F.linear(first(x_TD, self.A.shape[1]), self.A), self.B)

    def initialise(self, draw: Draw) -> None:
        draw.uniform_(self.A, "A", 1 / math.sqrt(self.A.shape[1]))
        nn.init.zeros_(self.B)


class Packing:
    """Columns of a product: those of sites, of `widths` N, then r for each gate's bottleneck, then padding."""

    aligns_sites = False
    """Whether the columns of every site are padded (`aligned`), not only the last."""

    def __init__(self, widths: list[int]) -> None:
        self.widths = widths

    def filled(self, like: Tensor) -> list[int]:
        """Columns of each site, including padding."""
        return [aligned(width, like) for width in self.widths] if self.aligns_sites else self.widths

    def product(self, x_TD: Tensor, matrices: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        """x times all matrices at once, [T, C]: the sites' matrix, then the gates' down-projections."""
        join = partial(self.join, x_TD.shape[-1], multiplied_in(matrices[0]))
        if bias is not None or len(matrices) == 1 or not torch.is_grad_enabled():
            matrix = join(*matrices)
            return F.linear(x_TD, matrix, self.bias(bias, len(matrix)))
        if torch.compiler.is_compiling():  # recomputes the join, as `_JoinedProduct` does
            return F.linear(x_TD, checkpoint(join, *matrices, use_reentrant=False, preserve_rng_state=False))
        return _JoinedProduct.apply(x_TD, join, sum(self.filled(matrices[0])), *matrices)  # type: ignore[no-untyped-call]

    def join(self, width: int, dtype: torch.dtype, *matrices: Tensor) -> Tensor:
        """Matrices stacked by rows, [C, D], in the type of the product, padded with zeros to `width` columns."""
        weight, *_ = parts = [matrix.to(dtype) for matrix in matrices]
        if (filled := self.filled(weight)) != self.widths:
            each = zip(torch.split(weight, self.widths), filled, strict=True)
            parts[:1] = [F.pad(part, (0, 0, 0, rows - len(part))) for part, rows in each]
        columns = sum(len(part) for part in parts)
        ends = row_end if len(parts) > 1 else aligned  # a single matrix is not copied
        if filling := ends(columns, weight) - columns:
            parts.append(weight.new_zeros(filling, weight.shape[1]))
        matrix = torch.cat(parts) if len(parts) > 1 else weight
        beyond = width - matrix.shape[1]
        return F.pad(matrix, (0, beyond)) if beyond else matrix

    def bias(self, bias_N: Tensor | None, columns: int) -> Tensor | None:
        """Bias of a product with so many columns, [C], with zeros for columns of no site."""
        if bias_N is None or columns == len(bias_N):
            return bias_N
        parts = zip(torch.split(bias_N, self.widths), self.filled(bias_N), strict=True)
        biases = torch.cat([F.pad(bias, (0, width - len(bias))) for bias, width in parts])
        return F.pad(biases, (0, columns - len(biases)))

    def split(self, product_TC: Tensor, ranks: Sequence[int] = ()) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Sites of a product, [T, N] each, and its gates' bottlenecks, [T, r] each. A single part is not split off: its
        gradient would be copied in eager mode."""
        columns = [*self.filled(product_TC), *ranks]
        used_TC = first(product_TC, sum(columns))
        parts = torch.split(used_TC, columns, dim=-1) if len(columns) > 1 else (used_TC,)
        sites = zip(parts, self.widths, strict=False)
        return tuple(first(part, width) for part, width in sites), parts[len(self.widths) :]


class _JoinedProduct(torch.autograd.Function):
    """x M^T, with M joined from parameters of which the first fills `first` rows. M is not saved for the backward pass
    but joined again, since at small batches it is as large as the result. Products use autocast's type. A first part
    that is not trained costs no product."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, join: Callable[..., Tensor], first: int, *parts: Tensor) -> Tensor:
        product_TC = F.linear(x_TD, join(*parts))
        ctx.save_for_backward(x_TD.to(product_TC.dtype), *parts)
        ctx.join, ctx.first, ctx.input_type = join, first, x_TD.dtype
        return product_TC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_TC: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, *parts = ctx.saved_tensors
        needs_x, _, _, *needs_parts = ctx.needs_input_grad
        with torch.enable_grad():
            leaves = [part.detach().requires_grad_(needs) for part, needs in zip(parts, needs_parts, strict=True)]
            matrix_CD = ctx.join(*leaves)
            begin = 0 if needs_parts[0] else ctx.first
            trained_CD = matrix_CD[begin:] if begin else matrix_CD
        dx_TD = (gradient_TC @ matrix_CD.detach().to(x_TD.dtype)).to(ctx.input_type) if needs_x else None
        found: list[Tensor | None] = [None] * len(parts)
        if any(needs_parts):
            dmatrix_CD = (gradient_TC[..., begin:].flatten(0, -2).T @ x_TD.flatten(0, -2)).to(matrix_CD.dtype)
            wanted = [leaf for leaf, needs in zip(leaves, needs_parts, strict=True) if needs]
            gradients = iter(torch.autograd.grad(trained_CD, wanted, dmatrix_CD))
            found = [next(gradients) if needs else None for needs in needs_parts]
        return dx_TD, None, None, *found


def aligned(width: int, like: Tensor) -> int:
    """`width`, on a GPU rounded up to a multiple of 8. Rows of 16-bit numbers then begin at multiples of 16 bytes,
    which fast matrix products require (5461, the feed-forward width of the 1b size, is odd)."""
    return -(-width // 8) * 8 if like.is_cuda else width


def row_end(width: int, like: Tensor) -> int:
    """`width` rounded up to where the next row of a product should begin: a cache line, 128 bytes on a GPU and 64 on a
    CPU. On an H200 the compiler copied bf16 rows of 2,768 columns into whole lines. On a CPU 1,380 columns took 1.7
    times as long in bf16 as 1,376, and the C++ kernels load whole lines; fp32 only loses."""
    line = {"cuda": 128, "cpu": 64}.get(like.device.type, like.itemsize) // like.itemsize
    return -(-width // line) * line


class GatedPath(CarriesGates):
    """Gate on a whole branch: y = gamma(h) * F(h), h the branch's input (Transponder, Eq. 7, "path")."""

    def __init__(self, site: Site, gate: GateFactory) -> None:
        super().__init__()
        self.sites = (site,)
        self.gates = nn.ModuleDict({site.name: gate(site)})

    def forward(self, h_TD: Tensor, y_TD: Tensor) -> Tensor:
        """`h` is the branch's input and `y` its output, [T, D]."""
        gate = self.gate(self.sites[0].name)
        return gate.scaled(y_TD, read_by(gate, h_TD))


class TokenEmbedding(Initialised):
    """Token ids to vectors, which start as N(0, std^2), optionally `truncated`. No row is special. The original scripts
    freeze a real token's row at zero through `padding_idx=-1`; here no method does."""

    role: Role = "embedding"

    def __init__(self, vocabulary: int, width: int, std: float, *, truncated: bool = False) -> None:
        super().__init__()
        self.std, self.truncated = std, truncated
        self.weight = nn.Parameter(torch.empty(vocabulary, width))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """[B, T] ids -> [B, T, D]."""
        if not torch.compiler.is_compiling():
            return F.embedding(tokens_BT, self.weight)
        return _Embedding.apply(self.weight, tokens_BT)  # type: ignore[no-untyped-call]

    def initialise(self, draw: Draw) -> None:
        (draw.truncated_ if self.truncated else draw.normal_)(self.weight, "weight", self.std)


class _Embedding(torch.autograd.Function):
    """`F.embedding` with PyTorch's own backward pass in compiled models. Inductor would write that pass as
    `index_put_(accumulate=True)`. On CUDA, under deterministic algorithms, it adds the rows of one id serially, perhaps
    thousands; on a CPU it adds them in any order. `embedding_dense_backward`, which runs in eager mode, is
    deterministic and parallel on both. As an operator the compiler does not replace it."""

    @staticmethod
    def forward(ctx: Any, weight_VD: Tensor, ids_T: Tensor) -> Tensor:
        ctx.save_for_backward(ids_T)
        ctx.vocabulary = len(weight_VD)
        return F.embedding(ids_T, weight_VD)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (ids_T,) = ctx.saved_tensors
        return _embedding_backward(gradients[0], ids_T, ctx.vocabulary), None


@torch.library.custom_op("comt::embedding_backward", mutates_args=())
def _embedding_backward(gradient_TD: Tensor, ids_T: Tensor, vocabulary: int) -> Tensor:
    no_padding_id = -1
    return torch.ops.aten.embedding_dense_backward(gradient_TD, ids_T, vocabulary, no_padding_id, False)


@_embedding_backward.register_fake
def _(gradient_TD: Tensor, ids_T: Tensor, vocabulary: int) -> Tensor:  # noqa: ARG001 - what the operator is given
    return gradient_TD.new_empty(vocabulary, gradient_TD.shape[-1])
