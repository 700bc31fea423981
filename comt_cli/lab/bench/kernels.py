"""How long the gated operations take: in PyTorch, compiled, and as one kernel. What the choice between them reads.

All kinds of gates and all forms of an operation on one product take turns; ratios are to the compiled operation
without gates, which is what a plain model runs there. A row is one form of one operation. Milliseconds are undisturbed
ones (`rounds`), with the 10th and 90th percentile of the turns; `step` is forward and backward together, `forward` the
forward part of it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from comt_cli.kernels import choice
from comt_cli.kernels.measurements import Tuned, kernel_hash, tiles_text
from comt_cli.kernels.operators import computed_by_triton
from comt_cli.lab.bench import gemm
from comt_cli.lab.bench.ending import failed
from comt_cli.lab.bench.kernel_cases import DTYPES, Case, case
from comt_cli.lab.bench.memory import saved_bytes
from comt_cli.lab.bench.origin import origin_on
from comt_cli.lab.bench.rounds import GoOn, Times, Turns, always, compared, each_in_time, reliability, unsettled
from comt_cli.lab.bench.shapes import Shape
from comt_cli.lab.bench.subjects import KERNELS
from comt_cli.training.devices import prepare_process
from comt_cli.training.objective import prepare_compiler

Row = dict[str, Any]
News = str | list[Row]
Tune = Callable[[str, Case, Callable[[], object]], Generator[News, None, Tuned]]
"""Called with what a step is of, its case and the step; returns the tiles that its kernels are to use."""


@dataclass(frozen=True)
class Group:
    """What takes turns: an operation on one product, with all kinds of gates."""

    op: str
    part: str
    shape: Shape
    dtype: str

    def __str__(self) -> str:
        return f"{self.shape.size} {self.dtype} {self.op} {self.part}"

    @property
    def shape_name(self) -> str:
        """What rows call the shape."""
        built, length = self.shape.built, self.shape.dimensions["length"]
        heads = f"{built.heads}" if built.kv_heads == built.heads else f"{built.heads}-k{built.kv_heads}"
        return f"d{built.width}-f{built.ffn_width}-h{heads}-b{self.shape.batch}x{length}-{self.part}"

    def case(self, gates: str, device: torch.device) -> Case:
        """The operation with its inputs."""
        return case(self.op, self.part, self.shape, gates, DTYPES[self.dtype], device)


def run_kernel_benchmark(
    shapes: Sequence[Shape],
    ops: Sequence[str],
    gates: Sequence[str],
    dtypes: Sequence[str],
    device: torch.device,
    rounds: int,
    go_on: GoOn = always,
) -> Iterator[News]:
    """Measure every operation on every shape in every type; yields lines of progress, and the rows of each group of
    variants that took turns. `go_on` is asked before each group and each turn. What fails is reported (`Failed`), and
    the rest is measured."""
    yield from run_groups(groups_of(shapes, ops, dtypes), gates, Turns(device, rounds, go_on))


def groups_of(shapes: Sequence[Shape], ops: Sequence[str], dtypes: Sequence[str]) -> list[Group]:
    """Every operation on each of its products."""
    products = KERNELS["products"]
    return [
        Group(op, part, shape, dtype) for shape in shapes for dtype in dtypes for op in ops for part in products[op]
    ]


def run_groups(every: Iterable[Group], gates: Sequence[str], turns: Turns, tune: Tune | None = None) -> Iterator[News]:
    """The same for these; `tune` has each kernel use the fastest of its tiles."""
    prepare_process(turns.device)
    yield from each_in_time({str(group): partial(_group, group, gates, turns, tune) for group in every}, turns)


def run_gemm_benchmark(
    shapes: Sequence[Shape],
    dtypes: Sequence[str],
    device: torch.device,
    rounds: int,
    go_on: GoOn = always,
) -> Iterator[News]:
    """The model's matrix products with and without columns for u (`gemm`), as rows whose op is `gemm`."""
    prepare_process(device)
    turns, parts = Turns(device, rounds, go_on), dict[str, Callable[[], Iterator[News]]]()
    for shape, dtype in itertools.product(shapes, dtypes):
        for product in gemm.products(shape, device):
            what = f"{dtype} gemm {product.name} ({product.what}), {shape.units:,} rows"
            parts.setdefault(what, partial(_products, what, product, shape.units, dtype, turns))
    yield from each_in_time(parts, turns)


def _products(what: str, product: gemm.Product, tokens: int, dtype: str, turns: Turns) -> Iterator[News]:
    device = turns.device
    forms = gemm.forms(product, tokens, DTYPES[dtype], device)
    parts = {(*name, "forward"): form.forward for name, form in forms.items()}
    parts |= {(*name, "step"): form.step for name, form in forms.items()}
    times = turns.of(parts, head_start=True)
    named: Row = {"op": "gemm", "shape": product.name, "tokens": tokens, "width": product.N}
    yield [
        _row(device, {**named, "gates": gates, "dtype": dtype}, variant, times, ("none", "plain"), None, "")
        for gates, variant in forms
    ]
    yield f"{what}: {unsettled(times) or f'measured in {len(next(iter(times.values())).seconds)} rounds'}"


def _group(group: Group, gates: Sequence[str], turns: Turns, tune: Tune | None) -> Iterator[News]:
    torch._dynamo.reset()
    choice.use_tiles((), only=True)  # those of another type or number of tokens would pass for these
    device, begin = turns.device, time.perf_counter()
    tiles: dict[str, str] = {}
    parts: dict[tuple[str, str, str], Callable[[], object]] = {}
    saved: dict[tuple[str, str], int] = {}
    width = 0
    for kind in gates:
        try:
            built = group.case(kind, device)
        except Exception as error:
            yield failed(f"{group}, {kind}", error)
            continue
        width = built.width
        forms = forms_of(built)
        kernel = _kernel_of(group, built, device)
        if tune is None:
            choice.use_tiles([kernel])
            tiles[kind] = tiles_text(kernel.tiles)
        if not kernel.fused:
            forms = {name: form for name, form in forms.items() if name in ("reference", "reference-compiled")}
            yield f"{group}, {kind}: no kernel ({kernel.reason})"
        for variant, form in forms.items():
            if not turns.go_on():
                yield f"{group}: left out for want of time"
                return
            try:
                step = step_of(form, built)
                if tune is not None and variant == "fused":
                    tuned = yield from tune(f"{group}, {kind}", built, step)
                    choice.use_tiles([replace(kernel, tiles=tuned)])
                    tiles[kind] = tiles_text(tuned)
                step()
                saved[kind, variant] = saved_bytes(form, built.own)
            except Exception as error:
                yield failed(f"{group}, {kind}, {variant}", error)
                continue
            parts[kind, variant, "forward"], parts[kind, variant, "step"] = form, step
    if not saved:
        return
    times = turns.of(parts, head_start=True)
    named: Row = {"op": group.op, "shape": group.shape_name, "tokens": group.shape.units, "width": width}
    rows = []
    for (kind, variant), count in saved.items():
        of, plain = {**named, "gates": kind, "dtype": group.dtype}, ("none", "reference-compiled")
        rows.append(_row(device, of, variant, times, plain, count, tiles.get(kind, "")))
    yield rows
    still = unsettled(times)
    yield f"{group}: measured after {time.perf_counter() - begin:.0f} s{f', {still}' if still else ''}"


def forms_of(built: Case) -> dict[str, Callable[[], Sequence[Tensor]]]:
    """What is timed, by its variant: the forms that there are, and the reference under the compiler."""
    prepare_compiler(versions=64, keep_others=True)
    reference = built.forms["reference"]
    return {**built.forms, "reference-compiled": torch.compile(reference, dynamic=False, fullgraph=True)}


def _kernel_of(group: Group, built: Case, device: torch.device) -> choice.Choice:
    """The kernel as a model takes it, in the tiles that are known to be the fastest."""
    op = cast(choice.Op, "modulate" if group.op == "projection" else group.op)
    dtype, tokens = DTYPES[group.dtype], group.shape.units
    return choice.choose(op, "fused", device, dtype, built.width, gates_of(built.gates), compiled=True, tokens=tokens)


def gates_of(kind: str) -> choice.Gates | None:
    """What `transponder-r8` stands for; None of `none`."""
    name, _, rank = kind.partition("-r")
    return choice.Gates(channel=name == "transponder", scalar=True, rank=int(rank)) if rank else None


def step_of(form: Callable[[], Sequence[Tensor]], built: Case) -> Callable[[], object]:
    """Forward and backward, with gradients as large as a normal network's for all that the operation gives."""
    with torch.no_grad():
        gradients = [torch.full_like(output, 1e-2) for output in form()]

    def step() -> None:
        torch.autograd.grad(list(form()), built.leaves, gradients)

    return step


def _row(
    device: torch.device,
    named: Row,
    variant: str,
    times: dict[tuple[str, str, str], Times],
    plain: tuple[str, str],
    saved: int | None,
    tiles: str,
) -> Row:
    """A line of the CSV: what it is `named` up to its type, its times, and those over the `plain` one's."""
    forward, step = ((named["gates"], variant, kind) for kind in ("forward", "step"))
    origin = origin_on(device)
    return {
        **{"device": origin.device, "device_type": device.type, "device_class": origin.device_class},
        **named,
        **{"variant": variant, "rounds": len(times[step].seconds)},
        **times[forward].columns("forward_ms"),
        **times[step].columns("step_ms"),
        **reliability("step_ms", times[step]),
        **compared("forward_ratio_to_plain_compiled", times, forward, (*plain, "forward")),
        **compared("step_ratio_to_plain_compiled", times, step, (*plain, "step")),
        "saved_bytes": saved,
        "kernel_hash": kernel_hash(named["op"]) if computed_by_triton(device) else None,
        "tiles": tiles,
        **origin.versions(),
    }
