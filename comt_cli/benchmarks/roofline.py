"""What a training step and a forward pass should cost on an H200, from bytes and FLOPs alone. A prediction, no
measurement: it stands beside the measured numbers and is never one of them.

A step is a sum of parts, each as long as the slower of its memory traffic and its arithmetic. A `pass` is one read or
one write of a [T, n] tensor in bf16. Beyond the plain step a design adds passes over activations, columns to matrix
products, and the narrow u:

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from comt_cli.benchmarks.shapes import GPU_SIZES, H200, LENGTH, TOKENS, VOCABULARY, goals_of
from comt_cli.tasks.settings.llama import LLAMA_SIZES, LlamaSize

DEVICE = H200
BYTES_PER_SECOND = 4.3e12
FLOPS_PER_SECOND = 790e12
"""What copies and dense bf16 products reach on an H200; the maker's numbers are higher."""
_ATTENTION_FORWARD, _ATTENTION_BACKWARD = 350e12, 300e12
"""FLOP/s of fused causal attention at these head widths."""
_STEP_TOKENS = 131072
"""The optimiser's pass over weights and moments is shared by so many tokens: the published global batch."""
_OPTIMISER_BYTES = 28
LABEL = "predicted, not measured"

Design = Literal["eager", "compiled", "fused", "fused-whole-tiles"]
DESIGNS: tuple[Design, ...] = ("eager", "compiled", "fused", "fused-whole-tiles")
Ratios = tuple[float, float]
"""Of the training step and of the forward pass, to the plain one."""


@dataclass(frozen=True)
class Product:
    """A matrix product of the model: output and input width, how many sites it computes."""

    N: int
    K: int
    sites: int


@dataclass(frozen=True)
class Plain:
    """Seconds of the plain model's parts."""

    step: float
    forward: float
    products: float
    forward_products: float
    head: float
    optimiser: float


@dataclass(frozen=True)
class Roofline:
    """One size. `columns`: of u, for each site; `efficiency`: the part of full speed that matrix products reach."""

    size: LlamaSize
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

    def plain(self) -> Plain:
        """The model without gates, everything fused that can be."""
        D, F, L, T, V = self.size.width, self.size.ffn_width, self.size.layers, self.tokens, self.vocabulary
        forward_products = sum(self.forward_of(product) for product in self.products())
        products = forward_products + sum(self.backward_of(product) for product in self.products())
        mixing = 4 * T * self.length * D * 0.5  # FLOPs of causal attention
        attention = max(self.passes(D, 4), mixing / _ATTENTION_FORWARD)
        attention_back = max(self.passes(D, 10), 2.5 * mixing / _ATTENTION_BACKWARD)
        between, between_back = (self.passes(D, 12) + self.passes(F, of_ffn) for of_ffn in (3, 5))
        head_forward = self.product(T, V, D)
        head = head_forward + self.product(T, D, V) + self.product(V, D, T) + self.passes(V, 2)
        parameters = L * (4 * D * D + 3 * D * F) + 2 * V * D
        optimiser = parameters * _OPTIMISER_BYTES / BYTES_PER_SECOND * T / _STEP_TOKENS
        embedding = self.passes(D, 4)
        return Plain(
            step=L * (products + attention + attention_back + between + between_back) + head + optimiser + embedding,
            forward=L * (forward_products + attention + between) + head_forward + embedding / 2,
            products=products,
            forward_products=forward_products,
            head=head,
            optimiser=optimiser,
        )

    def transponder(self, design: Design) -> Ratios:
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
        return self._ratios(*extra)

    def comt(self, design: Design) -> Ratios | None:
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
        plain, L = self.plain(), self.size.layers
        return 1 + L * (forward + backward) / plain.step, 1 + L * forward / plain.forward


def predicted_step_ratio(device: str, size: str, precision: str, variant: str) -> float | None:
    """What the model says of a variant's step; None for other devices, sizes and precisions than it is made for."""
    method, _, how = variant.partition("-")
    if device != DEVICE or size not in GPU_SIZES or precision == "fp32":
        return None
    ratios = _predict(method, size, how)
    return None if ratios is None else round(ratios[0], 4)


def _predict(method: str, size: str, design: str) -> Ratios | None:
    roofline = Roofline(LLAMA_SIZES[size])
    found = next((each for each in DESIGNS if each == design), None)
    if found is None or method not in ("comt", "transponder"):
        return None
    return roofline.transponder(found) if method == "transponder" else roofline.comt(found)


@dataclass(frozen=True)
class Prediction:
    """One design at one size. Times in milliseconds; ratios to the plain step, and the goals beside them."""

    device: str
    size: str
    tokens: int
    method: str
    variant: str
    kind: str
    plain_step_ms: float
    plain_step_ms_at_80_percent: float
    plain_tokens_per_second: float
    predicted_step_ratio: float
    predicted_forward_ratio: float
    goal_step_ratio: float | None
    goal_forward_ratio: float | None


def predictions(sizes: Sequence[str] = GPU_SIZES) -> list[Prediction]:
    """Every design of both methods at every size."""
    rows = []
    for size in sizes:
        plain = Roofline(LLAMA_SIZES[size]).plain()
        slower = Roofline(LLAMA_SIZES[size], efficiency=0.8).plain()
        for method in ("comt", "transponder"):
            for design in DESIGNS:
                ratios = _predict(method, size, design)
                if ratios is None:
                    continue
                goals = goals_of(f"{method}-{design.removesuffix('-whole-tiles')}", size, DEVICE, "bf16-pure")
                rows.append(
                    Prediction(
                        device=DEVICE,
                        size=size,
                        tokens=TOKENS,
                        method=method,
                        variant=f"{method}-{design}",
                        kind=LABEL,
                        plain_step_ms=round(1e3 * plain.step, 2),
                        plain_step_ms_at_80_percent=round(1e3 * slower.step, 2),
                        plain_tokens_per_second=round(TOKENS / plain.step),
                        predicted_step_ratio=round(ratios[0], 4),
                        predicted_forward_ratio=round(ratios[1], 4),
                        goal_step_ratio=goals.step,
                        goal_forward_ratio=goals.forward,
                    )
                )
    return rows
