"""How long the gated operations take: in PyTorch, compiled, and as one kernel. What the choice between them reads.

All kinds of gates and all forms of an operation on one product take turns; ratios are to the compiled operation
without gates, which is what a plain model runs there. A row is one form of one operation. Milliseconds are undisturbed
ones (`timing`), with the 10th and 90th percentile of the turns; `step` is forward and backward together, `forward` the
forward part of it. And the model's matrix products with and without the columns that gates add to them.

Nothing is written a second time here: the reference is the model's own path, its gates and its parameters included,
and the fused form calls the operators as the model does.
Shapes: B samples, T tokens of one (of a batch in `ProductCase`), C columns of a product, D width, N output width of a
site or product, K input width of a product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels import choice
from comt_cli.kernels.add_norm import add_norm
from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.heads import heads
from comt_cli.kernels.measurements import Tuned, kernel_hash, tiles_text
from comt_cli.kernels.modulate import modulate
from comt_cli.kernels.operators import computed_by_triton
from comt_cli.kernels.products import by_pytorch, multiplier
from comt_cli.kernels.swiglu import swiglu
from comt_cli.lab.bench.runner import DTYPES, Built, Case, Row, Unavailable, versions
from comt_cli.lab.bench.tables import GATES, KERNELS, Shape
from comt_cli.lab.bench.timing import Times, compared, reliability, saved_bytes
from comt_cli.layers.attention import rotate, rotation_table
from comt_cli.layers.projection import aligned
from comt_cli.models.build import empty_network, materialise, wiring_of
from comt_cli.models.llama import Block
from comt_cli.runs.directory import ONEDNN
from comt_cli.tasks.settings.llama import ModelSettings
from comt_cli.training.devices import device_name
from comt_cli.training.objective import prepare_compiler

Form = Callable[[], Sequence[Tensor]]
COLUMNS: dict[str, int] = KERNELS["columns"]
"""Columns that a site's gate adds, by the rows' name of the gate. The last: channel and scalar gate with an A each."""


class _KernelRows(Case):
    """Rows of kernels.csv, by a kind of gates and a variant. `named`: their columns that say what they are of; `tiles`:
    those in use, in a line, by gates."""

    page = "kernels"
    head_start = True
    named: Row
    tiles: dict[str, str]

    def rows(
        self, ready: Mapping[tuple[str, str], Built], times: Mapping[tuple[str, tuple[str, str]], Times]
    ) -> list[Row]:
        op, dtype = self.named["op"], self.named["dtype"]
        device_class = choice.device_here(self.device).device_class
        plain, rows = ("none", "plain" if op == "gemm" else "reference-compiled"), []
        for (gates, variant), built in ready.items():
            forward, step = (("forward", (gates, variant)), ("step", (gates, variant)))
            width, saved = built.facts
            row: Row = {
                "device": device_name(self.device),
                "device_type": self.device.type,
                "device_class": device_class,
            }
            row |= {"op": op, "shape": self.named["shape"], "tokens": self.named["tokens"], "width": width}
            row |= {"gates": gates, "dtype": dtype, "variant": variant, "rounds": len(times[step].seconds)}
            row |= times[forward].columns("forward_ms") | times[step].columns("step_ms")
            row |= reliability("step_ms", times[step])
            row |= compared("forward_ratio_to_plain_compiled", times, forward, ("forward", plain))
            row |= compared("step_ratio_to_plain_compiled", times, step, ("step", plain))
            row["saved_bytes"] = saved
            row["kernel_hash"] = kernel_hash(op) if computed_by_triton(self.device) else None
            rows.append(row | {"tiles": self.tiles.get(gates, "")} | versions())
        return rows


# ---- operations


class KernelCase(_KernelRows):
    """An operation on one product, with all kinds of gates. `tune`, where it is given, chooses the tiles of an
    operation's kernels by its step; it returns them, and remarks."""

    tune: Callable[[Operation, Callable[[], object]], tuple[Tuned, list[str]]] | None = None

    def __init__(
        self, op: str, part: str, shape: Shape, dtype: str, gates: Sequence[str], device: torch.device
    ) -> None:
        own = "library" if op == "projection" else "fused"
        keys = [*itertools.product(gates, ("reference", own, "reference-compiled"))]
        super().__init__(f"{shape.size} {dtype} {op} {part}", keys, device)
        self.op, self.part, self.shape, self.dtype, self.gates = op, part, shape, dtype, gates
        self.named = {"op": op, "dtype": dtype, "shape": self.shape_name, "tokens": shape.units}
        self.tiles = {}

    @property
    def shape_name(self) -> str:
        """Of the rows."""
        built, length = self.shape.built, self.shape.dimensions["length"]
        heads = f"{built.heads}" if built.kv_heads == built.heads else f"{built.heads}-k{built.kv_heads}"
        return f"d{built.width}-f{built.ffn_width}-h{heads}-b{self.shape.batch}x{length}-{self.part}"

    def operation(self, gates: str) -> Operation:
        """The operation with its inputs."""
        return operation(self.op, self.part, self.shape, gates, DTYPES[self.dtype], self.device)

    def builder(self) -> Callable[[tuple[str, str]], Built]:
        @cache
        def of(gates: str) -> tuple[Operation, choice.Choice]:
            built = self.operation(gates)
            op, dtype = cast(choice.Op, "modulate" if self.op == "projection" else self.op), DTYPES[self.dtype]
            kernel = choice.choose(
                op, "fused", self.device, dtype, built.width, gates_of(gates), compiled=True, tokens=self.shape.units
            )
            return built, kernel

        def build(key: tuple[str, str]) -> Built:
            gates, variant = key
            built, kernel = of(gates)
            if not variant.startswith("reference") and not kernel.fused:
                raise Unavailable(f"no kernel ({kernel.reason})")
            form, notes = built.form(variant), list[str]()
            step = step_of(form, built)
            if self.tune is not None and variant == "fused":
                tuned, notes = self.tune(built, step)
                kernel = replace(kernel, tiles=tuned)
            if self.tune is None or variant == "fused":
                choice.use_tiles([kernel])
                self.tiles[gates] = tiles_text(kernel.tiles)
            step()
            return Built({"forward": form, "step": step}, (built.width, saved_bytes(form, built.own)), notes)

        return build


def kernel_cases(
    shapes: Sequence[Shape], ops: Sequence[str], gates: Sequence[str], dtypes: Sequence[str], device: torch.device
) -> list[KernelCase]:
    """Every operation on each of its products, on every shape and in every type."""
    products = KERNELS["products"]
    return [
        KernelCase(op, part, shape, dtype, gates, device)
        for shape, dtype, op in itertools.product(shapes, dtypes, ops)
        for part in products[op]
    ]


@dataclass(frozen=True)
class Operation:
    """One operation on one product with one kind of gates: the forms of it that there are, each of no arguments.

    `width` is that of the product's sites together, `widest` that of the widest as the kernel takes it; `leaves` have
    gradients, `own` are its parameters.
    """

    op: str
    width: int
    widest: int
    gates: str
    leaves: list[Tensor]
    own: list[Tensor]
    forms: dict[str, Form]

    def form(self, variant: str) -> Form:
        """One of the forms, or the reference under the compiler."""
        if variant != "reference-compiled":
            return self.forms[variant]
        prepare_compiler(versions=64, keep_others=True)
        compiled: Form = torch.compile(self.forms["reference"], dynamic=False, fullgraph=True)
        return compiled


def gates_of(kind: str) -> choice.Gates | None:
    """The gates of `transponder-r8`; None of `none`."""
    name, _, rank = kind.partition("-r")
    return choice.Gates(channel=name == "transponder", scalar=True, rank=int(rank)) if rank else None


def step_of(form: Form, built: Operation) -> Callable[[], object]:
    """Forward and backward, with gradients as large as a normal network's for all that the operation gives."""
    with torch.no_grad():
        gradients = [torch.full_like(output, 1e-2) for output in form()]

    def step() -> None:
        torch.autograd.grad(list(form()), built.leaves, gradients)

    return step


def operation(op: str, part: str, shape: Shape, gates: str, dtype: torch.dtype, device: torch.device) -> Operation:
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
        matrices = [site.weight, *parameters]
        forms: dict[str, Form] = {
            "reference": lambda: site.gated(site.product(x_BTD)),
            "library": lambda: (modulate(site.product(x_BTD).flatten(0, 1), modulation(), site.widths),),
        }
        return Operation(op, width, widest, gates, [x_BTD, *matrices], matrices, forms)
    product_BTC = site.product(x_BTD).detach().requires_grad_()
    # the gates' summaries are part of the product, which is given here
    read = {id(site.gate(name).down_projection()) for name in site.gates}
    leaves, own = [product_BTC, *(each for each in parameters if id(each) not in read)], parameters

    def flat() -> Tensor:
        return product_BTC.flatten(0, 1)

    def reference() -> Sequence[Tensor]:
        return site.gated(product_BTC)

    def fused() -> Sequence[Tensor]:
        return (modulate(flat(), modulation(), site.widths),)

    if op == "heads":
        rotation = rotation_table(length, built.width // built.heads, settings.rope_theta, product_BTC)
        own = [*own, *rotation]

        def reference() -> Sequence[Tensor]:
            counts = built.heads, built.kv_heads, built.kv_heads
            q, k, v = (
                x_BTN.view(*x_BTN.shape[:2], count, -1).transpose(1, 2)
                for x_BTN, count in zip(site.gated(product_BTC), counts, strict=True)
            )
            return rotate(q, rotation), rotate(k, rotation), v

        def fused() -> Sequence[Tensor]:
            return heads(flat(), modulation(), *rotation, built.heads, built.kv_heads)

    elif op == "swiglu":
        widest = aligned(built.ffn_width, product_BTC)  # every site's columns are filled up in the product

        def reference() -> Sequence[Tensor]:
            gate, up = site.gated(product_BTC)
            inner = F.silu(gate) * up
            return (F.pad(inner, (0, widest - built.ffn_width)) if widest > built.ffn_width else inner,)

        def fused() -> Sequence[Tensor]:
            return (swiglu(flat(), modulation(), widest, widest),)

    elif op == "add_norm":
        norm, stream_BTD = block.mlp_connection.norm, normal(width).requires_grad_()
        assert isinstance(norm, nn.RMSNorm)
        weight, eps = norm.weight, norm.eps or 0.0
        leaves, own = [*leaves, stream_BTD, weight], [*own, weight]

        def reference() -> Sequence[Tensor]:
            y_BTD = stream_BTD + site.gated(product_BTC)[0]
            return y_BTD, norm(y_BTD)

        def fused() -> Sequence[Tensor]:
            return add_norm(stream_BTD.flatten(0, 1), flat(), modulation(), weight, eps)

    return Operation(op, width, widest, gates, leaves, own, {"reference": reference, "fused": fused})


# ---- matrix products


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


class ProductCase(_KernelRows):
    """A matrix product of the model, with the columns that gates add to it, by the library: what those columns cost.

    Forward z = x W^T; backward dx = dz W and dW = dz^T x, with the gates' columns among those of z and dz.
    """

    def __init__(self, product: Product, tokens: int, dtype: str, device: torch.device) -> None:
        self.product, self.tokens, self.dtype = product, tokens, DTYPES[dtype]
        self.widths = widths(product)
        if (device.type, self.dtype, multiplier()) == ("cpu", torch.float32, ONEDNN):
            self.widths["none", "pytorch"] = [product.N]
        what = f"{dtype} gemm {product.name} ({product.what}), {tokens:,} rows"
        super().__init__(what, [*self.widths], device)
        self.named = {"op": "gemm", "dtype": dtype, "shape": product.name, "tokens": tokens}
        self.tiles = {}

    def builder(self) -> Callable[[tuple[str, str]], Built]:
        """Every variant has random matrices of its own; x and the gradient of z are common to all."""
        generator = torch.Generator(self.device).manual_seed(0)

        @cache
        def shared(*sizes: int) -> Tensor:
            return torch.randn(sizes, generator=generator, device=self.device).to(self.dtype)

        def build(key: tuple[str, str]) -> Built:
            x_TK, K = shared(self.tokens, self.product.K), self.product.K
            matrices = [shared.__wrapped__(width, K) for width in self.widths[key]]
            gradients = [shared(self.tokens, width) for width in self.widths[key]]

            def forward() -> list[Tensor]:
                return [x_TK @ W.T for W in matrices]

            def step() -> object:
                z = forward()
                dx_TK = gradients[0] @ matrices[0]
                for W, dz in zip(matrices[1:], gradients[1:], strict=True):
                    dx_TK.addmm_(dz, W)
                return z, dx_TK, [dz.T @ x_TK for dz in gradients]

            parts: dict[str, Callable[[], object]] = {"forward": forward, "step": step}
            if key[1] == "pytorch":
                parts = {name: by_pytorch()(part) for name, part in parts.items()}
            return Built(parts, (self.product.N, None))

        return build


def product_cases(shapes: Sequence[Shape], dtypes: Sequence[str], device: torch.device) -> list[ProductCase]:
    """The products of the model at these shapes and in these types, each once."""
    cases = (
        ProductCase(product, shape.units, dtype, device)
        for shape, dtype in itertools.product(shapes, dtypes)
        for product in products(shape, device)
    )
    return [*{case.what: case for case in cases}.values()]


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
        extra, known = count * product.sites, set[int]()
        for variant, multiple in {"columns": 1, "padded-8": 8, "padded": 128}.items():
            width = -(-(N + extra) // multiple) * multiple
            if width not in known:
                found[gate, variant] = [width]
            known.add(width)
        found[gate, "separate"] = [N, extra]
    return found
