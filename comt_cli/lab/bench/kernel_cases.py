"""What the kernels are timed on: each operation as the model computes it, from the product that the model has.

Nothing is written a second time here: the reference is the model's own path, its gates and its parameters included,
and the fused form calls the operators as the model does.
Shapes: B rows, T tokens of a row, C columns of a product, D width, N output width of a site.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.add_norm import add_norm
from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.heads import heads
from comt_cli.kernels.modulate import modulate
from comt_cli.kernels.swiglu import swiglu
from comt_cli.lab.bench.shapes import Shape
from comt_cli.lab.bench.subjects import GATES
from comt_cli.layers.attention import rotate, rotation_table
from comt_cli.layers.projection import aligned
from comt_cli.models.build import empty_network, materialise, wiring_of
from comt_cli.models.llama import Block
from comt_cli.tasks.settings.llama import ModelSettings

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
Forms = dict[str, Callable[[], Sequence[Tensor]]]


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
    forms: Forms


def case(op: str, part: str, shape: Shape, gates: str, dtype: torch.dtype, device: torch.device) -> Case:
    """An operation on a product of a block (`qkv`, `o`, `gate-up`, `down`), with inputs of the distribution that a new
    model has."""
    settings = ModelSettings.model_validate({**shape.model, "layers": 1})
    built, length = settings.shape(), shape.dimensions["length"]
    model = empty_network(settings, wiring_of({"name": GATES[gates]}), vocabulary=8)
    materialise(model, device, seed=0)
    block = model.to(dtype).blocks[0]
    assert isinstance(block, Block)
    products = {"qkv": block.attention.qkv, "o": block.attention.output}
    site = (products | {"gate-up": block.mlp.gate_up, "down": block.mlp.down})[part]
    generator = torch.Generator(device).manual_seed(0)

    def normal(width: int) -> Tensor:
        return torch.randn(shape.batch, length, width, generator=generator, device=device).to(dtype)

    def modulation() -> Modulation:
        found = site.modulation()
        assert found is not None  # all gates timed here have a bottleneck
        return found

    inputs, width, widest = site.weight.shape[1], sum(site.widths), max(site.widths)
    x_BTD = normal(inputs)
    if (beyond := aligned(inputs, x_BTD) - inputs) and part == "down":
        x_BTD = F.pad(x_BTD, (0, beyond))  # as SwiGLU leaves it
    parameters: list[Tensor] = list(site.gates.parameters())
    if op == "projection":
        x_BTD.requires_grad_()
        forms: Forms = {
            "reference": lambda: site.gated(site.product(x_BTD)),
            "library": lambda: (modulate(site.product(x_BTD).flatten(0, 1), modulation(), site.widths),),
        }
        matrices = [site.weight, *parameters]
        return Case(op, width, widest, gates, [x_BTD, *matrices], matrices, forms)
    product_BTC = site.product(x_BTD).detach().requires_grad_()
    # the gates' summaries are part of the product, which is given here
    read = {id(site.gate(name).down_projection()) for name in site.gates}
    leaves, own = [product_BTC, *(each for each in parameters if id(each) not in read)], parameters
    if op == "heads":
        rotation = rotation_table(length, built.width // built.heads, settings.rope_theta, product_BTC)
        own = [*own, *rotation]

        def rotated() -> Sequence[Tensor]:
            q, k, v = site.gated(product_BTC)
            q, k, v = _split(q, built.heads), _split(k, built.kv_heads), _split(v, built.kv_heads)
            return rotate(q, rotation), rotate(k, rotation), v

        forms = {
            "reference": rotated,
            "fused": lambda: heads(product_BTC.flatten(0, 1), modulation(), *rotation, built.heads, built.kv_heads),
        }
    elif op == "swiglu":
        padded = aligned(built.ffn_width, product_BTC)
        widest = padded  # every site's columns are filled up in the product

        def activated() -> Sequence[Tensor]:
            gate, up = site.gated(product_BTC)
            inner = F.silu(gate) * up
            return (F.pad(inner, (0, padded - built.ffn_width)) if padded > built.ffn_width else inner,)

        forms = {
            "reference": activated,
            "fused": lambda: (swiglu(product_BTC.flatten(0, 1), modulation(), padded, padded),),
        }
    elif op == "add_norm":
        norm, stream_BTD = block.mlp_connection.norm, normal(width).requires_grad_()
        assert isinstance(norm, nn.RMSNorm)
        weight, eps = norm.weight, norm.eps or 0.0
        leaves, own = [*leaves, stream_BTD, weight], [*own, weight]

        def normed() -> Sequence[Tensor]:
            y_BTD = stream_BTD + site.gated(product_BTC)[0]
            return y_BTD, norm(y_BTD)

        forms = {
            "reference": normed,
            "fused": lambda: add_norm(stream_BTD.flatten(0, 1), product_BTC.flatten(0, 1), modulation(), weight, eps),
        }
    else:
        forms = {
            "reference": lambda: site.gated(product_BTC),
            "fused": lambda: (modulate(product_BTC.flatten(0, 1), modulation(), site.widths),),
        }
    return Case(op, width, widest, gates, leaves, own, forms)


def _split(x_BTN: Tensor, count: int) -> Tensor:
    """Into heads, [B, heads, T, head width]."""
    return x_BTN.view(*x_BTN.shape[:2], count, -1).transpose(1, 2)
