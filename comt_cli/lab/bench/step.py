"""How long one training step of any task takes: each variant as a ratio to the best plain one of the same run.

A row is one variant. Times are in milliseconds (undisturbed, as `rounds` has it, with the 10th and 90th percentile of
the turns). A ratio has three columns beside it (`rounds.reliability`), and so has the step's time, which `mfu` and
speeds are made of. `forward` is training's forward pass without gradients, loss included; `saved` what it keeps for
the backward pass; `peak` the most that a step takes beyond weights and the optimiser's states (CUDA only; not where it
lies in CUDA graphs, which keep it between steps).
FLOPs are those of the variant's own network as training counts them (matrix products, attention in full), of another
library's those of the plain one; `mfu` is what it has of them a second, over the device's peak.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from comt_cli.kernels.choice import use_tiles
from comt_cli.lab.bench.ending import Failed, failed
from comt_cli.lab.bench.memory import free, mebibytes, peak_beyond, saved_bytes
from comt_cli.lab.bench.origin import origin_on
from comt_cli.lab.bench.peers import PEERS
from comt_cli.lab.bench.rounds import GoOn, Times, always, compared, quickest, reliability, told_turns
from comt_cli.lab.bench.shapes import Shape
from comt_cli.lab.bench.subjects import ARITHMETIC, GRAPHS, NONDETERMINISTIC, SUBJECTS, Subject, subject_of
from comt_cli.lab.bench.variants import CompileWhat, Prepared, Unavailable, Variants, is_compiled
from comt_cli.models.build import model_of
from comt_cli.models.flops import flops_per_sample, parameter_count
from comt_cli.recipe.settings import Precision
from comt_cli.training.devices import peak_flops, prepare_process

Row = dict[str, Any]


@dataclass(frozen=True)
class Timed:
    """The variants that could be had, in the order in which they were asked for, on the batch that fitted: their times,
    the bytes of their saved activations and, where it can be counted, their peak."""

    shape: Shape
    variants: list[str] = field(default_factory=list)
    saved: dict[str, int] = field(default_factory=dict)
    peak: dict[str, int | None] = field(default_factory=dict)
    step: dict[str, Times] = field(default_factory=dict)
    forward: dict[str, Times] = field(default_factory=dict)


def step_plan(
    device_type: str,
    sizes: Sequence[str] | None,
    precisions: Sequence[str] | None,
    variants: Collection[str],
    *,
    peers_needed: bool,
) -> list[tuple[Subject, Shape, Precision, list[str]]]:
    """What is measured on a kind of device, of the sizes that are named or its own, and those of `variants` that there
    are of each. `peers_needed`: variants of other libraries were asked for by name.

    Raises:
        UserError: such a library is not installed; said now, before anything is compiled.
    """
    named = sizes or [size for subject in SUBJECTS for size in subject.default_sizes(device_type)]
    planned = []
    for subject, size in ((subject_of(size), size) for size in named):
        of_size = [name for name in subject.variants_of(size) if name in variants]
        for peer in subject.peers if peers_needed else ():
            if any(name.partition("-")[0] == peer for name in of_size):
                PEERS[peer].library()
        for precision in (precisions or subject.default_precisions(device_type)) if of_size else ():
            planned.append((subject, subject.shapes[size], cast(Precision, precision), of_size))
    return planned


def run_step_benchmark(
    shape: Shape,
    precision: Precision,
    variants: Sequence[str],
    device: torch.device,
    rounds: int,
    compile_what: CompileWhat = "whole",
    go_on: GoOn = always,
) -> Iterator[str | list[Row]]:
    """Measure `variants` on `device`; yields lines of progress, and last the rows."""
    subject = subject_of(shape.size)

    def make(shape: Shape) -> Variants:
        return Variants(subject, shape, precision, device, compile_what)

    for news in steps_in_turns(shape, precision, variants, make, device, rounds, go_on):
        yield news if isinstance(news, str) else _rows(subject, news, precision, device, compile_what)


def steps_in_turns(
    shape: Shape,
    precision: str,
    variants: Sequence[str],
    make: Callable[[Shape], Variants],
    device: torch.device,
    rounds: int,
    go_on: GoOn,
) -> Iterator[str | Timed]:
    """Build `variants` with what `make` gives for a shape, and time them on `device` in turns (`rounds`); yields lines
    of progress, and last what was timed. Where `go_on` says no, no further variant is built, and what is built is timed
    in one whole round, if there was none.

    Where a batch does not fit in the device's memory it is halved for all; the subject's optional variants are left out
    instead. A variant that fails is reported (`Failed`), and the others are timed.
    """
    what = f"{shape.size} {precision}"
    prepare_process(device)
    while True:
        torch._dynamo.reset()
        use_tiles((), only=True)  # of another batch or type
        free(device)
        try:
            yield from _timed(make(shape), variants, rounds, go_on)
        except torch.cuda.OutOfMemoryError:
            if shape.batch < 2:
                yield Failed(f"{what}: failed (not even one sample fits)")
                break
            shape = shape.halved()
        except Exception as error:
            yield failed(what, error)
            break
        else:
            break
        yield f"too large: once more with {shape.amount} a step"
    torch._dynamo.reset()
    free(device)


def _timed(builder: Variants, variants: Sequence[str], rounds: int, go_on: GoOn) -> Iterator[str | Timed]:
    device, optional, found = builder.device, builder.subject.optional, Timed(builder.shape)
    what = f"{builder.shape.size} {builder.precision}"
    ready: dict[str, Prepared] = {}
    # Those that must fit come first: whether the batch is too large shows before time is spent on the others.
    for name in sorted(variants, key=lambda name: name in optional):
        if not go_on():
            yield f"{what} {name}: left out for want of time"
            continue
        begin = time.perf_counter()
        prepared: Prepared | None = None
        problem: str | None = None
        try:
            prepared = builder.prepare(name)
            for part in (prepared.step, prepared.step, prepared.forward, prepared.forward):
                part()
            saved = saved_bytes(prepared.loss, prepared.parameters)
            peak = None if name.endswith(GRAPHS) else peak_beyond(prepared.step, device)
        except Unavailable as reason:
            problem = f"{what} {name}: left out, {reason}"
        except torch.cuda.OutOfMemoryError:
            if name not in optional:
                raise
            problem = f"{what} {name}: left out, does not fit with {builder.shape.amount}"
        except Exception as error:
            problem = failed(f"{what} {name}", error)
        if prepared is None or problem is not None:
            for parameter in prepared.parameters if prepared is not None else ():
                parameter.grad = None
            prepared = None  # and the error's trace with it, so that what they hold can be freed
            yield problem or ""
            free(device)
            continue
        ready[name], found.saved[name], found.peak[name] = prepared, saved, peak
        notes = f" (not fused: {'; '.join(prepared.notes)})" if prepared.notes else ""
        yield f"{what} {name}: ready after {time.perf_counter() - begin:.1f} s{notes}"
    if not ready:
        return
    parts = {("step", name): each.step for name, each in ready.items()}
    parts |= {("forward", name): each.forward for name, each in ready.items()}
    times = yield from told_turns(f"{what} ", parts, rounds, device, go_on)
    found.variants.extend(name for name in variants if name in ready)
    for (kind, name), each in times.items():
        (found.step if kind == "step" else found.forward)[name] = each
    yield found


def _rows(
    subject: Subject, timed: Timed, precision: Precision, device: torch.device, compile_what: CompileWhat
) -> list[Row]:
    shape, plain, origin = timed.shape, subject.best_plain, origin_on(device)
    own_columns = {"device_type": device.type, "device_class": origin.device_class}
    best, best_forward = quickest(timed.step, plain), quickest(timed.forward, plain)
    plain_saved = min((timed.saved[n] for n in plain if n in timed.saved and not n.endswith(GRAPHS)), default=None)
    wanted = {"plain", *(name.partition("-")[0] for name in timed.variants)}
    models = {name: model_of(shape.spec(of.method)) for name, of in subject.networks.items() if name in wanted}
    flops = {name: flops_per_sample(model) for name, model in models.items()}
    parameters = {name: parameter_count(model) for name, model in models.items()}
    peak = peak_flops(device, precision)
    rows = []
    for name in timed.variants:
        step, network = timed.step[name], name.partition("-")[0]
        network = network if network in models else "plain"  # another library's
        more = flops[network] / flops["plain"]
        arithmetic = max(more, parameters[network] / parameters["plain"])
        to_peers: Row = {}
        for peer in subject.peers:
            to_peers |= compared(f"step_ratio_to_{peer}", timed.step, name, peer)
        row: Row = {
            "device": origin.device,
            **(own_columns if subject.decides_kernels else {}),
            "shape": str(shape),
            "size": shape.size,
            "precision": precision,
            "variant": name,
            "rounds": len(step.seconds),
            **step.columns("step_ms", 3),
            **reliability("step_ms", step),
            f"{subject.unit}_per_second": round(shape.units / step.undisturbed, 1),
            "mfu": None if peak is None else round(flops[network] * shape.batch / step.undisturbed / peak, 4),
            "flops_ratio_to_plain": round(more, 4),
            **({ARITHMETIC: round(arithmetic, 4)} if subject.counts_arithmetic else {}),
            "best_plain": best,
            **compared("step_ratio_to_best_plain", timed.step, name, best),
            **(
                compared("step_ratio_to_nondeterministic", timed.step, name, NONDETERMINISTIC)
                if device.type == "cuda" and subject.compiles
                else {}
            ),
            **to_peers,
            **(
                compared("step_ratio_to_plain_compiled", timed.step, name, "plain-compiled")
                if "compiled" in subject.goal_columns
                else {}
            ),
            "best_plain_forward": best_forward,
            **timed.forward[name].columns("forward_ms", 3),
            **compared("forward_ratio_to_best_plain", timed.forward, name, best_forward),
            "saved_mib": mebibytes(timed.saved[name]),
            "saved_ratio_to_plain": round(timed.saved[name] / plain_saved, 4) if plain_saved else None,
            "peak_mib": mebibytes(timed.peak[name]),
        }
        row |= subject.goals(row, device.type)
        what = "whole" if subject.is_peer(name) else compile_what  # nothing is known of a library's blocks
        rows.append(row | {"compiled": what if is_compiled(name) else "no"} | origin.versions())
    return rows
