"""What the kernels are timed on: each operation as the model computes it, from the product that the model has.

Nothing is written a second time here: the reference is the model's own path, its gates and its parameters included,
and the fused form calls the operators as the model does.
Shapes: B rows, T tokens of a row, C columns of a product, D width, N output width of a site.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.benchmarks.names import GATES
from comt_cli.benchmarks.shapes import Shape
from comt_cli.kernels.add_norm import add_norm
from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.heads import heads
from comt_cli.kernels.modulate import modulate
from comt_cli.kernels.swiglu import swiglu
from comt_cli.layers.packing import aligned
from comt_cli.layers.projection import Projections
from comt_cli.layers.rotary import rotate, rotation_table
from comt_cli.models.build import empty_network, materialise, wiring_of
from comt_cli.models.llama import Block
from comt_cli.tasks.settings.llama import ModelSettings

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
VARIANTS = {
    "reference": "the model's path in PyTorch, as it comes",
    "reference-compiled": "the same under torch.compile",
    "fused": "one kernel",
    "library": "the library's matrix product, then one kernel (projection only)",
}
Part = Literal["qkv", "o", "gate-up", "down"]
_PARTS: dict[str, tuple[Part, ...]] = {
    "heads": ("qkv",),
    "swiglu": ("gate-up",),
    "add_norm": ("o",),
    "modulate": ("o", "qkv"),
    "projection": ("o", "down"),
}
"""Which products of a block an operation is timed on."""


@dataclass(frozen=True)
class Case:
    """One operation on one product with one kind of gates: the forms of it that there are, each of no arguments.

    `width` is that of the product's sites together, `widest` that of the widest as the kernel takes it.
    """

    op: str
    width: int
    widest: int
    gates: str
    leaves: list[Tensor]
    own: list[Tensor]
    forms: dict[str, Callable[[], Sequence[Tensor]]]


def groups(op: str) -> tuple[Part, ...]:
    """The products that `op` is timed on; each is measured by itself."""
    return _PARTS[op]


def case(op: str, part: Part, shape: Shape, gates: str, dtype: torch.dtype, device: torch.device) -> Case:
    """An operation with inputs of the distribution that a new model has."""
    settings = ModelSettings.model_validate({**shape.model, "layers": 1})
    built, length = settings.shape(), shape.dimensions["length"]
    model = empty_network(settings, wiring_of({"name": GATES[gates]}), vocabulary=8)
    materialise(model, device, seed=0)
    block = model.to(dtype).blocks[0]
    assert isinstance(block, Block)
    products = {"qkv": block.attention.qkv, "o": block.attention.output}
    projections = (products | {"gate-up": block.mlp.gate_up, "down": block.mlp.down})[part]
    generator = torch.Generator(device).manual_seed(0)

    def normal(width: int) -> Tensor:
        return torch.randn(shape.batch, length, width, generator=generator, device=device).to(dtype)

    inputs = projections.weight.shape[1]
    x_BTD = normal(inputs)
    if (beyond := aligned(inputs, x_BTD) - inputs) and part == "down":
        x_BTD = F.pad(x_BTD, (0, beyond))  # as SwiGLU leaves it
    width = sum(projections.widths)
    parameters: list[Tensor] = list(projections.gates.parameters())
    if op == "projection":
        forms = _projection(projections, x_BTD.requires_grad_())
        matrices = [projections.weight, *parameters]
        return Case(op, width, max(projections.widths), gates, [x_BTD, *matrices], matrices, forms)
    product_BTC = projections.product(x_BTD).detach().requires_grad_()
    # the gates' summaries are part of the product, which is given here
    read = {id(projections.gate(name).down_projection()) for name in projections.gates}
    leaves = [product_BTC, *(each for each in parameters if id(each) not in read)]
    own = parameters
    if op == "heads":
        rotation = rotation_table(length, built.width // built.heads, settings.rope_theta, product_BTC)
        forms = _heads(projections, product_BTC, rotation, built.heads, built.kv_heads)
        own = [*own, *rotation]
    elif op == "swiglu":
        forms = _swiglu(projections, product_BTC, built.ffn_width)
    elif op == "add_norm":
        norm, stream_BTD = block.mlp_connection.norm, normal(width).requires_grad_()
        assert isinstance(norm, nn.RMSNorm)
        forms = _add_norm(projections, product_BTC, stream_BTD, norm)
        leaves, own = [*leaves, stream_BTD, norm.weight], [*own, norm.weight]
    else:
        forms = _modulate(projections, product_BTC)
    widest = max(projections.widths)
    widest = aligned(widest, product_BTC) if op == "swiglu" else widest  # whose columns are filled up
    return Case(op, width, widest, gates, leaves, own, forms)


Forms = dict[str, Callable[[], Sequence[Tensor]]]


def _modulation(projections: Projections) -> Modulation:
    modulation = projections.modulation()
    assert modulation is not None  # all gates timed here have a bottleneck
    return modulation


def _heads(
    projections: Projections, product_BTC: Tensor, rotation: tuple[Tensor, Tensor], count: int, kv_count: int
) -> Forms:
    def split(x_BTN: Tensor, count: int) -> Tensor:
        return x_BTN.view(*x_BTN.shape[:2], count, -1).transpose(1, 2)

    def reference() -> Sequence[Tensor]:
        q, k, v = projections.gated(product_BTC)
        return rotate(split(q, count), rotation), rotate(split(k, kv_count), rotation), split(v, kv_count)

    def fused() -> Sequence[Tensor]:
        return heads(product_BTC.flatten(0, 1), _modulation(projections), *rotation, count, kv_count)

    return {"reference": reference, "fused": fused}


def _swiglu(projections: Projections, product_BTC: Tensor, ffn_width: int) -> Forms:
    padded = aligned(ffn_width, product_BTC)

    def reference() -> Sequence[Tensor]:
        gate, up = projections.gated(product_BTC)
        inner = F.silu(gate) * up
        return (F.pad(inner, (0, padded - ffn_width)) if padded > ffn_width else inner,)

    def fused() -> Sequence[Tensor]:
        # every site's columns are filled up in the product: to the kernel they are `padded` wide
        return (swiglu(product_BTC.flatten(0, 1), _modulation(projections), padded, padded),)

    return {"reference": reference, "fused": fused}


def _add_norm(projections: Projections, product_BTC: Tensor, x_BTD: Tensor, norm: nn.RMSNorm) -> Forms:
    def reference() -> Sequence[Tensor]:
        y_BTD = x_BTD + projections.gated(product_BTC)[0]
        return y_BTD, norm(y_BTD)

    def fused() -> Sequence[Tensor]:
        rows = x_BTD.flatten(0, 1), product_BTC.flatten(0, 1)
        return add_norm(*rows, _modulation(projections), norm.weight, norm.eps or 0.0)

    return {"reference": reference, "fused": fused}


def _modulate(projections: Projections, product_BTC: Tensor) -> Forms:
    def reference() -> Sequence[Tensor]:
        return projections.gated(product_BTC)

    def fused() -> Sequence[Tensor]:
        return (modulate(product_BTC.flatten(0, 1), _modulation(projections), projections.widths),)

    return {"reference": reference, "fused": fused}


def _projection(projections: Projections, x_BTD: Tensor) -> Forms:
    def reference() -> Sequence[Tensor]:
        return projections.gated(projections.product(x_BTD))

    def library() -> Sequence[Tensor]:
        product_TC = projections.product(x_BTD).flatten(0, 1)
        return (modulate(product_TC, _modulation(projections), projections.widths),)

    return {"reference": reference, "library": library}
