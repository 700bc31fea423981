"""What a training step of a LLaMA should cost on an H200 (`roofline`).

A `pass` is one read or one write of a [T, n] tensor in bf16. Beyond the plain step a design adds passes over
activations, columns to matrix products, and the narrow u:

    eager      every gate its own operations, forward 12 and backward 25 passes over each site's output
    compiled   one product for the sites that share an input, the logits [T, N] as products of their own, the rest fused
    fused      every gate in the kernel that reads or writes the tensor anyway

Not modelled: launch gaps, throttling, kernels below the memory's full speed, products below the device's full speed
except through `efficiency`, products that grow by a whole tile for a few columns (`whole_tiles` does that), and what
CoMT's gates cost under the compiler alone.
Shapes: T tokens, D width, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from comt_cli.benchmarks.shapes import LENGTH, TOKENS, VOCABULARY, Shape
from comt_cli.sums import added

_ATTENTION_FORWARD, _ATTENTION_BACKWARD = 350e12, 300e12
"""FLOP/s of fused causal attention at these head widths."""
_STEP_TOKENS = 131072
"""The optimiser's pass over weights and moments is shared by so many tokens: the published global batch."""
_OPTIMISER_BYTES = 28

BYTES_PER_SECOND = 4.3e12
FLOPS_PER_SECOND = 790e12
"""What copies and dense bf16 products reach on an H200; the maker's numbers are higher."""
Ratios = tuple[float, float]
"""Of the training step and of the forward pass."""
METHODS = ("comt", "transponder")
DESIGNS = ("eager", "compiled", "fused", "fused-whole-tiles")
EXTENT = "tokens"
SAID = (
    "From bytes and FLOPs on paper: 4.3 TB/s, 790 TFLOP/s dense bf16, 65,536 tokens a step, nothing measured.",
    "`eager`: every gate its own operations; `compiled`: products shared, the rest fused by a compiler, logits",
    "as products of their own; `fused`: gates in the kernels that touch the tensor anyway, products growing by",
    "the gates' columns alone; `fused-whole-tiles`: growing by whole tiles of 128 columns instead. Not",
    "modelled: launch gaps, throttling, kernels below the memory's full speed, CoMT's gates if compiled.",
)


@dataclass(frozen=True)
class Product:
    """A matrix product of the model: output and input width, how many sites it computes."""

    N: int
    K: int
    sites: int


@dataclass(frozen=True)
class LlamaRoofline:
    """One network, by its widths and depth. `columns`: of u, for each site; `efficiency`: the part of full speed that
    matrix products reach."""

    size: Any
    tokens: int = TOKENS
    length: int = LENGTH
    vocabulary: int = VOCABULARY
    columns: int = 8
    efficiency: float = 1.0

    def passes(self, width: float, count: float) -> float:
        """Seconds of `count` passes over [T, width]."""
        return count * 2 * self.tokens * width / BYTES_PER_SECOND

    def product(self, M: int, N: int, K: int) -> float:
        """Seconds of [M, K] @ [K, N]."""
        arithmetic = 2 * M * N * K / (FLOPS_PER_SECOND * self.efficiency)
        return max(arithmetic, 2 * (M * K + N * K + M * N) / BYTES_PER_SECOND)

    def products(self) -> list[Product]:
        """Those of one layer."""
        D, F = self.size.width, self.size.ffn_width
        return [Product(3 * D, D, 3), Product(D, D, 1), Product(2 * F, D, 2), Product(D, F, 1)]

    def forward_of(self, product: Product) -> float:
        """Seconds of x W^T."""
        return self.product(self.tokens, product.N, product.K)

    def backward_of(self, product: Product) -> float:
        """Seconds of dz W and dz^T x."""
        return self.product(self.tokens, product.K, product.N) + self.product(product.N, product.K, self.tokens)

    def plain(self) -> Ratios:
        """Seconds of the step and of the forward pass without gates, everything fused that can be."""
        D, F, L, T, V = self.size.width, self.size.ffn_width, self.size.layers, self.tokens, self.vocabulary
        forward_products = added(self.forward_of(product) for product in self.products())
        products = forward_products + added(self.backward_of(product) for product in self.products())
        mixing = 4 * T * self.length * D * 0.5  # FLOPs of causal attention
        attention = max(self.passes(D, 4), mixing / _ATTENTION_FORWARD)
        attention_back = max(self.passes(D, 10), 2.5 * mixing / _ATTENTION_BACKWARD)
        between, between_back = (self.passes(D, 12) + self.passes(F, of_ffn) for of_ffn in (3, 5))
        head_forward = self.product(T, V, D)
        head = head_forward + self.product(T, D, V) + self.product(V, D, T) + self.passes(V, 2)
        parameters = L * (4 * D * D + 3 * D * F) + 2 * V * D
        optimiser = parameters * _OPTIMISER_BYTES / BYTES_PER_SECOND * T / _STEP_TOKENS
        embedding = self.passes(D, 4)
        step = L * (products + attention + attention_back + between + between_back) + head + optimiser + embedding
        return step, L * (forward_products + attention + between) + head_forward + embedding / 2

    def ratios(self, method: str, design: str) -> Ratios | None:
        """Of the step and of the forward pass with gates at all seven projections to the plain ones; None where nothing
        is known on paper."""
        return self.transponder(design) if method == "transponder" else self.comt(design)

    def transponder(self, design: str) -> Ratios | None:
        """Channel and scalar gates at all seven projections."""
        D, F = self.size.width, self.size.ffn_width
        outputs, inputs = 5 * D + 2 * F, 6 * D + F
        narrow = 7 * self.columns
        u = self.passes(narrow, 2)
        # u read and du written, twice each; and the parts of du that every 128 channels leave, 4 bytes each
        du = self.passes(narrow, 4) + outputs / 128 * self.columns * 4 * self.tokens / BYTES_PER_SECOND
        tiles, tiles_back = self._growth(whole_tiles=True)
        flops, flops_back = self._growth(whole_tiles=False)
        match design:
            case "eager":
                extra = (
                    self.passes(outputs, 12) + self.passes(inputs, 2),
                    self.passes(outputs, 25) + self.passes(inputs, 10),
                )
            case "compiled":
                extra = (
                    self.passes(outputs, 2) + self.passes(D, 2) + tiles + u,
                    self.passes(outputs, 5) + self.passes(D, 9) + tiles_back + 2 * u,
                )
            case "fused":
                extra = self.passes(D, 2) + flops + u, self.passes(D, 9) + flops_back + du
            case "fused-whole-tiles":
                extra = self.passes(D, 2) + tiles + u, self.passes(D, 9) + tiles_back + du
            case _:
                return None
        return self._ratios(*extra)

    def comt(self, design: str) -> Ratios | None:
        """Scalar gates, two columns each, at all seven projections; None where nothing is known on paper."""
        D, F = self.size.width, self.size.ffn_width
        outputs, inputs = 5 * D + 2 * F, 6 * D + F
        match design:
            case "eager":
                return self._ratios(
                    self.passes(outputs, 3) + self.passes(inputs, 1), self.passes(outputs, 7) + self.passes(inputs, 5)
                )
            case "fused":
                return self._ratios(self.passes(D, 2) + self.passes(14, 2), self.passes(D, 9) + self.passes(14, 6))
        return None

    def _growth(self, *, whole_tiles: bool) -> Ratios:
        """Seconds that the columns of u add to a layer's products, forward and backward."""
        forward = backward = 0.0
        for product in self.products():
            wider = product.N + product.sites * self.columns
            share = math.ceil(wider / 128) / math.ceil(product.N / 128) if whole_tiles else wider / product.N
            forward += self.forward_of(product) * (share - 1)
            backward += self.backward_of(product) * (share - 1)
        return forward, backward

    def _ratios(self, forward: float, backward: float) -> Ratios:
        (step, plain_forward), L = self.plain(), self.size.layers
        return 1 + L * (forward + backward) / step, 1 + L * forward / plain_forward


def roofline_of(shape: Shape, efficiency: float = 1.0) -> LlamaRoofline:
    """The network of a shape."""
    length, vocabulary = shape.dimensions["length"], shape.dimensions["vocabulary"]
    return LlamaRoofline(shape.built, shape.units, length, vocabulary, efficiency=efficiency)
