"""Times of the gated operations: in PyTorch, compiled, and as one kernel. `kernels: auto` uses them.

All kinds of gates and all forms of an operation on one product alternate; ratios are to the compiled operation without
gates, the operation of a plain model. A row is one form of one operation; `step` is forward and backward together.
Shapes: B samples, T tokens of one, C columns of a product, D width, N output width of a site.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
import torch._inductor.config
from torch import Tensor, nn

from comt_cli.campaign.processes import begin_as_helper, signals_blocked, usable_cores
from comt_cli.kernels import choice, measurements
from comt_cli.kernels.choice import Op, device_here, versions_here
from comt_cli.kernels.gates import Modulation
from comt_cli.kernels.measurements import Tuned, kernel_hash, tiles_text
from comt_cli.kernels.modulate import modulate
from comt_cli.kernels.operators import computed_by_triton
from comt_cli.kernels.triton import tiles
from comt_cli.kernels.triton.tiles import Key, Kind, Tile
from comt_cli.lab.runner import DTYPES, Built, Case, Row, Session, Unavailable, run_cases
from comt_cli.lab.subjects import GATES, KERNELS, Shape
from comt_cli.lab.timing import Part, Times, compared, free, in_turns, reliability, saved_bytes, stopwatch_for
from comt_cli.layers.positions import rotation_table
from comt_cli.layers.residual.base import State
from comt_cli.models.build import empty_network, materialise, wiring_of
from comt_cli.models.llama import Block
from comt_cli.tasks.settings.language import ModelSettings
from comt_cli.training.devices import device_name, prepare_process
from comt_cli.training.objective import prepare_compiler

Form = Callable[[], Sequence[Tensor]]
KINDS: dict[str, Kind] = {"none": "none", "comt": "scalar", "transponder": "channel"}
"""The kinds of gates in the tables of tiles."""
MOST_PROCESSES = 8


@dataclass
class KernelCase(Case):
    """An operation on one product, by kind of gates and variant. `tune`, if given, chooses the tiles of an operation's
    kernels by its step, and returns them with a remark; `tiles` are those in use, by gates."""

    op: Op
    part: str
    shape: Shape
    dtype: str
    device: torch.device
    tune: Callable[[Operation, Part], tuple[Tuned, str]] | None = None

    page = "kernels"
    head_start = True

    def __post_init__(self) -> None:
        built, length = self.shape.built, self.shape.dimensions["length"]
        self.shape_name = f"d{built.width}-f{built.ffn_width}-h{built.heads}-b{self.shape.batch}x{length}-{self.part}"
        self.what = f"{self.shape.size} {self.dtype} {self.op} {self.part}"
        self.keys = [*itertools.product(GATES, KERNELS["variants"])]
        self.tiles = dict[str, str]()

    def build(self, key: tuple[str, str], shared: dict[Any, Any]) -> Built:
        gates, variant = key
        if gates not in shared:
            dtype, width, gated = DTYPES[self.dtype], self.shape.built.width, gates_of(gates)
            kernel = choice.choose(
                self.op, "fused", self.device, dtype, width, gated, compiled=True, tokens=self.shape.units
            )
            shared[gates] = self.operation(gates), kernel
        built, kernel = shared[gates]
        if variant == "fused" and not kernel.fused:
            raise Unavailable(f"no kernel ({kernel.reason})")
        form, note = built.form(variant), ""
        step = step_of(form, built)
        if self.tune is not None and variant == "fused":
            tuned, note = self.tune(built, step)
            kernel = replace(kernel, tiles=tuned)
        choice.use_tiles([kernel])
        self.tiles[gates] = tiles_text(kernel.tiles)
        step()
        return Built({"forward": form, "step": step}, (built.width, saved_bytes(form, built.own)), note)

    def operation(self, gates: str) -> Operation:
        return operation(self.op, self.part, self.shape, gates, DTYPES[self.dtype], self.device)

    def rows(
        self, ready: Mapping[tuple[str, str], Built], times: Mapping[tuple[str, tuple[str, str]], Times]
    ) -> list[Row]:
        plain, rows = ("none", "reference-compiled"), []
        for (gates, variant), built in ready.items():
            forward, step = (("forward", (gates, variant)), ("step", (gates, variant)))
            width, saved = built.facts
            row: Row = {"device": device_name(self.device), "device_type": self.device.type}
            row |= {"device_class": device_here(self.device).device_class, "op": self.op, "shape": self.shape_name}
            row |= {"tokens": self.shape.units, "width": width, "gates": gates, "dtype": self.dtype, "variant": variant}
            row |= {"rounds": len(times[step].seconds), **times[forward].columns("forward_ms")}
            row |= times[step].columns("step_ms") | reliability("step_ms", times[step])
            row |= compared("forward_ratio_to_plain_compiled", times, forward, ("forward", plain))
            row |= compared("step_ratio_to_plain_compiled", times, step, ("step", plain))
            row["saved_bytes"] = saved
            row["kernel_hash"] = kernel_hash(self.op) if computed_by_triton(self.device) else None
            rows.append(row | {"tiles": self.tiles.get(gates, "")})
        return rows


def kernel_cases(
    shapes: Sequence[Shape], ops: Sequence[str], dtypes: Sequence[str], device: torch.device
) -> list[KernelCase]:
    """Every operation on each of its products, for every shape and type."""
    return [
        KernelCase(cast(Op, op), part, shape, dtype, device)
        for shape, dtype, op in itertools.product(shapes, dtypes, ops)
        for part in KERNELS["products"][op]
    ]


@dataclass(frozen=True)
class Operation:
    """One operation on one product. `width` is that of all its sites, `widest` that of the widest as the kernel takes
    it; `leaves` have gradients, `own` are its parameters."""

    op: str
    width: int
    widest: int
    gates: str
    leaves: list[Tensor]
    own: list[Tensor]
    forms: dict[str, Form]

    def form(self, variant: str) -> Form:
        if variant != "reference-compiled":
            return self.forms[variant]
        prepare_compiler(versions=64, keep_others=True)
        compiled: Form = torch.compile(self.forms["reference"], dynamic=False, fullgraph=True)
        return compiled


def gates_of(kind: str) -> choice.Gates | None:
    """The gates of `transponder-r8`; None for `none`."""
    name, _, rank = kind.partition("-r")
    return choice.Gates(channel=name == "transponder", scalar=True, rank=int(rank)) if rank else None


def step_of(form: Form, built: Operation) -> Callable[[], object]:
    """Forward and backward, with gradients of a normal network's size for all outputs of the operation."""
    with torch.no_grad():
        gradients = [torch.full_like(output, 1e-2) for output in form()]

    def step() -> None:
        torch.autograd.grad(list(form()), built.leaves, gradients)

    return step


def operation(op: str, part: str, shape: Shape, gates: str, dtype: torch.dtype, device: torch.device) -> Operation:
    """An operation on a product of a block (`qkv`, `o`, `gate-up`) of a new model, with the model's own modules."""
    settings = ModelSettings.model_validate({**shape.model, "layers": 1})
    built, length = settings.shape(), shape.dimensions["length"]
    model = empty_network(settings, wiring_of({"name": GATES[gates]}), vocabulary=8)
    materialise(model, device, seed=0)
    block = model.to(dtype).blocks[0]
    assert isinstance(block, Block)
    site = {"qkv": block.attention.qkv, "o": block.attention.output, "gate-up": block.mlp.gate_up}[part]
    generator = torch.Generator(device).manual_seed(0)

    def normal(width: int) -> Tensor:
        return torch.randn(shape.batch, length, width, generator=generator, device=device).to(dtype)

    def modulation() -> Modulation:
        found = site.modulation()
        assert found is not None  # all gates timed here have a bottleneck
        return found

    x_BTD = normal(site.weight.shape[1])
    product_BTC = site.product(x_BTD).detach().requires_grad_()
    site.product = lambda _: product_BTC  # type: ignore[method-assign, assignment]
    # the gates' summaries are part of the product, which is given here
    read = {id(site.gate(name).down_projection()) for name in site.gates}
    own: list[Tensor] = list(site.gates.parameters())
    leaves = [product_BTC, *(each for each in own if id(each) not in read)]

    def both(module: Any, outputs: Callable[[Any], Sequence[Tensor]]) -> dict[str, Form]:
        fused = copy.copy(module)
        fused.fused = True
        return {"reference": lambda: outputs(module), "fused": lambda: outputs(fused)}

    if op == "heads":
        rotation = rotation_table(length, built.width // built.heads, settings.rope_theta, product_BTC)
        own += rotation
        forms = both(block.attention, lambda each: each.rotated_heads(product_BTC, (), rotation, [])[0])
    elif op == "swiglu":
        forms = both(block.mlp, lambda each: (each.inner(product_BTC),))
    elif op == "add_norm":
        norm, stream_BTD = cast(nn.Module, block.mlp_connection.norm), normal(built.width).requires_grad_()
        leaves, own = [*leaves, stream_BTD, *norm.parameters()], [*own, *norm.parameters()]
        forms = {
            "reference": lambda: State(stream_BTD + site.gated(product_BTC, x_BTD)[0]).normalised(norm),
            "fused": lambda: State(stream_BTD, deferred=(product_BTC, modulation())).normalised(norm),
        }
    else:
        forms = {
            "reference": lambda: site.gated(product_BTC, x_BTD),
            "fused": lambda: (modulate(product_BTC.flatten(0, 1), modulation(), site.widths),),
        }
    widest = max(site.packing.filled(product_BTC))
    return Operation(op, sum(site.widths), widest, gates, leaves, own, forms)


# ---- tiles of the Triton kernels


def to_tune(cases: Sequence[KernelCase]) -> list[KernelCase]:
    """The cases that are not yet measured on this card with these kernels and versions, for all gates."""
    known = {
        (row.device, row.op, row.shape, row.dtype, f"{row.kind}-r{row.rank}" if row.rank else row.kind)
        for row in measurements.measurements()[0]
        if row.own and (row.torch, row.triton) == versions_here()
        if row.kernel_hash == kernel_hash(row.op) and row.tiles  # of these kernels and the chosen tiles
        if all(row.error.get(form, math.inf) < math.inf for form in ("fused", "reference-compiled"))
    }

    def is_open(case: KernelCase) -> bool:
        here, dtype = device_here(case.device), DTYPES[case.dtype]
        taken = [kind for kind in GATES if choice.obstacle(case.device, dtype, gates_of(kind)) is None]
        return not {(here, case.op, case.shape_name, case.dtype, kind) for kind in taken} <= known

    return [case for case in cases if is_open(case)]


def run_tuning(todo: Sequence[KernelCase], session: Session) -> None:
    """Compile in several processes, into the caches of Triton and of PyTorch's compiler; then this process times alone.
    Compiling ends with half of the time: the rest is compiled when it is first timed."""
    compile_all(todo, session)
    for case in todo:
        case.tune = partial(_fastest_tiles, session, case.device)
    run_cases(todo, session)


def compile_all(todo: Sequence[KernelCase], session: Session) -> None:
    """Run everything once, and discard it, for half of the remaining time, in several processes."""
    half = session.left() / 2
    jobs = [(case, *key) for case in todo for key in case.keys if key[1] != "reference"]
    with signals_blocked():
        started = multiprocessing.get_context("spawn").Pool(min(MOST_PROCESSES, usable_cores()), begin_as_helper)
    with started as pool:
        compiled = pool.map_async(compile_one, jobs, chunksize=1)
        while not compiled.ready() and session.left() >= half:
            compiled.wait(1)


def compile_one(job: tuple[KernelCase, str, str]) -> None:
    """Run a variant of a case once with each of its tiles. Failures are reported when it is timed."""
    case, gates, variant = job
    torch._dynamo.reset()  # it has room for so many versions of one function
    torch._inductor.config.compile_threads = 1  # this is one of many processes already
    with contextlib.suppress(Exception):
        prepare_process(case.device)
        built = case.operation(gates)
        step = step_of(built.form(variant), built)
        step()
        for key, tile in _tiles_to_try(built) if variant == "fused" else []:
            with contextlib.suppress(Exception):
                _in_tiles({key: tile}, step)()
    with contextlib.suppress(Exception):  # after an illegal access nothing works on the device
        free(case.device)


def _in_tiles(tuned: dict[Key, Tile], step: Part) -> Part:
    def part() -> object:
        tiles.use(tuned)
        return step()

    return part


def _tiles_to_try(built: Operation) -> list[tuple[Key, Tile]]:
    kind = KINDS[built.gates.partition("-")[0]]
    return [
        ((kernel, kind, built.widest), tile)
        for kernel in (built.op, f"{built.op}_backward")
        for tile in tiles.TILES.get((kernel, kind), ())
    ]


def _fastest_tiles(session: Session, device: torch.device, built: Operation, step: Part) -> tuple[Tuned, str]:
    """The tiles of a fastest step, each kernel's with the other's defaults, and a remark on those that cannot run."""
    parts, notes, best = dict[tuple[Key, Tile], Part](), list[str](), dict[Key, Tile]()
    for key, tile in _tiles_to_try(built):
        part = _in_tiles({key: tile}, step)
        try:
            part()
        except Exception as error:  # of an older card, which has less memory for them
            notes.append(f"{tiles_text([(key, tile)])}: {type(error).__name__}")
        else:
            parts[key, tile] = part
    try:
        how = stopwatch_for(device, head_start=True)
        times = in_turns(parts, session.rounds, how, session.goes_on) if parts else {}
    finally:
        choice.use_tiles(())  # again those of the kinds of gates before
    for key, tile in sorted(times, key=lambda each: times[each].undisturbed):
        best.setdefault(key, tile)
    return tuple(sorted(best.items())), "; ".join(notes)
