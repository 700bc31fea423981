"""Packing of several matrices that share their input into one product, in the layout that kernels read.

Shapes: T tokens (any leading dimensions), D input width, N output width of one matrix, r bottleneck width of a gate,
C columns of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from comt_cli.kernels.transponder import multiplied_in


class Packing:
    """Columns of a product: those of sites, of `widths` N, then the gates' bottlenecks, r each, and zeros that fill a
    row up to where the next should begin."""

    def __init__(self, widths: list[int]) -> None:
        self.widths = widths
        self.aligns_sites = False
        """Whether every site's columns are filled up (`aligned`), not only the last: the next operation knows."""

    def filled(self, like: Tensor) -> list[int]:
        """Columns of each site, with the zeros behind them."""
        return [aligned(width, like) for width in self.widths] if self.aligns_sites else self.widths

    def product(self, x_TD: Tensor, matrices: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        """x times all matrices at once, [T, C]: the sites' matrix first, then the gates' down-projections."""
        join = partial(self.join, x_TD.shape[-1], multiplied_in(matrices[0]))
        if bias is not None or len(matrices) == 1 or not torch.is_grad_enabled():
            matrix = join(*matrices)
            return F.linear(x_TD, matrix, self.bias(bias, len(matrix)))
        if torch.compiler.is_compiling():  # the compiler is told what `_JoinedProduct` does
            return F.linear(x_TD, checkpoint(join, *matrices, use_reentrant=False, preserve_rng_state=False))
        product_TC: Tensor = _JoinedProduct.apply(x_TD, join, *matrices)  # type: ignore[no-untyped-call]
        return product_TC

    def packed(self, matrices: Sequence[Tensor], bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Matrix and bias of the product, in the weight's type, for inputs with aligned columns."""
        weight, *_ = matrices
        matrix = self.join(aligned(weight.shape[1], weight), weight.dtype, *matrices)
        return matrix, self.bias(bias, len(matrix))

    def join(self, width: int, dtype: torch.dtype, *matrices: Tensor) -> Tensor:
        """Matrices under each other, [C, D], in the type of the product, filled up with zeros to `width` columns."""
        weight, *_ = parts = [matrix.to(dtype) for matrix in matrices]
        if (filled := self.filled(weight)) != self.widths:
            each = zip(torch.split(weight, self.widths), filled, strict=True)
            parts[:1] = [F.pad(part, (0, 0, 0, rows - len(part))) for part, rows in each]
        columns = sum(len(part) for part in parts)
        ends = row_end if len(parts) > 1 else aligned  # a lone matrix is better left where it is
        if filling := ends(columns, weight) - columns:
            parts.append(weight.new_zeros(filling, weight.shape[1]))
        matrix = torch.cat(parts) if len(parts) > 1 else weight
        beyond = width - matrix.shape[1]
        return F.pad(matrix, (0, beyond)) if beyond else matrix

    def bias(self, bias_N: Tensor | None, columns: int) -> Tensor | None:
        """Bias of a product of so many columns, [C], with zeros for columns of no site."""
        if bias_N is None or columns == len(bias_N):
            return bias_N
        parts = zip(torch.split(bias_N, self.widths), self.filled(bias_N), strict=True)
        biases = torch.cat([F.pad(bias, (0, width - len(bias))) for bias, width in parts])
        return F.pad(biases, (0, columns - len(biases)))

    def split(self, product_TC: Tensor, ranks: Sequence[int] = ()) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """A product's sites, [T, N] each, and its gates' bottlenecks, [T, r] each. A lone part is not split off:
        uncompiled, its gradient would be copied."""
        columns = [*self.filled(product_TC), *ranks]
        used_TC = _first(product_TC, sum(columns))
        parts = torch.split(used_TC, columns, dim=-1) if len(columns) > 1 else (used_TC,)
        sites = zip(parts, self.widths, strict=False)
        return tuple(_first(part, width) for part, width in sites), parts[len(self.widths) :]


class _JoinedProduct(torch.autograd.Function):
    """x M^T, M joined of parameters. M itself is not kept for the backward pass, but joined again there: at a small
    batch it is as large as what is computed from it.

    The products are those that autograd makes, under autocast in its type.
    """

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, join: Callable[..., Tensor], *parts: Tensor) -> Tensor:
        product_TC = F.linear(x_TD, join(*parts))
        ctx.save_for_backward(x_TD.to(product_TC.dtype), *parts)
        ctx.join, ctx.input_type = join, x_TD.dtype
        return product_TC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_TC: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, *parts = ctx.saved_tensors
        needs_x, _, *needs_parts = ctx.needs_input_grad
        with torch.enable_grad():
            leaves = [part.detach().requires_grad_(needs) for part, needs in zip(parts, needs_parts, strict=True)]
            matrix_CD = ctx.join(*leaves)
        dx_TD = (gradient_TC @ matrix_CD.detach().to(x_TD.dtype)).to(ctx.input_type) if needs_x else None
        found: list[Tensor | None] = [None] * len(parts)
        if any(needs_parts):
            dmatrix_CD = (gradient_TC.flatten(0, -2).T @ x_TD.flatten(0, -2)).to(matrix_CD.dtype)
            wanted = [leaf for leaf, needs in zip(leaves, needs_parts, strict=True) if needs]
            gradients = iter(torch.autograd.grad(matrix_CD, wanted, dmatrix_CD))
            found = [next(gradients) if needs else None for needs in needs_parts]
        return dx_TD, None, *found


def _first(x_TC: Tensor, width: int) -> Tensor:
    """The first columns: where that is all of them x itself, since even the view of everything is an operation."""
    return x_TC if x_TC.shape[-1] == width else x_TC[..., :width]


def aligned(width: int, like: Tensor) -> int:
    """`width`, on a GPU rounded up to a multiple of 8: rows of 16-bit numbers then begin at 16 bytes, without which the
    fast matrix products are closed (5461, the 1b size's feed-forward width, is odd)."""
    return -(-width // 8) * 8 if like.is_cuda else width


def row_end(width: int, like: Tensor) -> int:
    """`width` rounded up to where the next row of a product should begin: at a cache line, 128 bytes on a GPU and 64
    on a CPU. On an H200 the compiler copied a product of 2,768 columns in bf16 into rows of whole lines before it used
    it. On a CPU one of 1,380 columns took 1.7 times as long in bf16 as one of 1,376, and the C++ kernels load whole
    lines; in fp32 more columns than that only cost."""
    line = {"cuda": 128, "cpu": 64}.get(like.device.type, like.itemsize) // like.itemsize
    return -(-width // line) * line
