"""The model's matrix products with the columns that gates add to them, by the library: what those columns cost.

Shapes: T rows, N output width of the model's product, K input width, C columns that are computed.
Forward z = x W^T; backward dx = dz W and dW = dz^T x, with the gates' columns among those of z and dz.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from comt_cli.kernels.products import by_pytorch, multiplier
from comt_cli.lab.bench.shapes import Shape
from comt_cli.lab.bench.subjects import KERNELS
from comt_cli.layers.projection import aligned
from comt_cli.runs.directory import ONEDNN

COLUMNS: dict[str, int] = KERNELS["columns"]
"""Columns that a site's gate adds, by the rows' name of the gate. The last: channel and scalar gate with an A each."""


@dataclass(frozen=True)
class Product:
    """A product of the model: what it is of, output and input width, and how many sites it computes."""

    what: str
    N: int
    K: int
    sites: int

    @property
    def name(self) -> str:
        """`n1536-k512`."""
        return f"n{self.N}-k{self.K}"


@dataclass(frozen=True)
class Form:
    """One way to compute it: the forward products, and all of a step."""

    forward: Callable[[], object]
    step: Callable[[], object]


def products(shape: Shape, device: torch.device) -> list[Product]:
    """The four of a block, of the widths that the model has on `device`: there the feed-forward one is `aligned`."""
    built = shape.built
    D, F = built.width, aligned(built.ffn_width, torch.empty(0, device=device))
    return [
        Product("qkv", D + 2 * built.kv_heads * (D // built.heads), D, 3),
        Product("o", D, D, 1),
        Product("gate-up", 2 * F, D, 2),
        Product("down", D, F, 1),
    ]


def widths(product: Product) -> dict[tuple[str, str], list[int]]:
    """By gate and variant, the widths of the products that are computed; where two variants agree, the first alone."""
    N = product.N
    found: dict[tuple[str, str], list[int]] = {("none", "plain"): [N]}
    for gate, count in COLUMNS.items():
        if not count:
            continue
        extra = count * product.sites
        of = {"columns": N + extra, "padded-8": _up(N + extra, 8), "padded": _up(N + extra, 128)}
        known: set[int] = set()
        for variant, width in of.items():
            if width not in known:
                found[gate, variant] = [width]
            known.add(width)
        found[gate, "separate"] = [N, extra]
    return found


def _up(width: int, multiple: int) -> int:
    return -(-width // multiple) * multiple


def forms(product: Product, tokens: int, dtype: torch.dtype, device: torch.device) -> dict[tuple[str, str], Form]:
    """Every variant, with random matrices of its own; x and the gradient of z are common to all."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, device=device).to(dtype)

    x_TK = normal(tokens, product.K)
    gradients: dict[int, Tensor] = {}
    found = {}
    for key, columns in widths(product).items():
        matrices = [normal(width, product.K) for width in columns]
        for width in columns:
            if width not in gradients:
                gradients[width] = normal(tokens, width)
        found[key] = _form(x_TK, matrices, [gradients[width] for width in columns])
    if (device.type, dtype, multiplier()) == ("cpu", torch.float32, ONEDNN):
        plain = found["none", "plain"]
        found["none", "pytorch"] = Form(by_pytorch()(plain.forward), by_pytorch()(plain.step))
    return found


def _form(x_TK: Tensor, matrices: list[Tensor], gradients: list[Tensor]) -> Form:
    def forward() -> list[Tensor]:
        return [x_TK @ W.T for W in matrices]

    def step() -> object:
        z = forward()
        first, *others = zip(matrices, gradients, strict=True)
        dx_TK = first[1] @ first[0]
        for W, dz in others:
            dx_TK.addmm_(dz, W)
        return z, dx_TK, [dz.T @ x_TK for dz in gradients]

    return Form(forward, step)
