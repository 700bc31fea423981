"""How long one training step of any task takes: each variant as a ratio to the best plain one of the same run.

A row is one variant. Times are in milliseconds (undisturbed, as `rounds` has it, with the 10th and 90th percentile of
the turns). A ratio has three columns beside it (`rounds.reliability`), and so has the step's time, which `mfu` and
speeds are made of. `forward` is training's forward pass without
gradients, loss included; `saved` what it keeps for the backward pass; `peak` the most that a step takes beyond weights
and the optimiser's states (CUDA only; not where it lies in CUDA graphs, which keep it between steps).
FLOPs are those of the variant's own network as training counts them (matrix products, attention in full), of another
library's those of the plain one; `mfu` is what it has of them a second, over the device's peak.
Goals are at most, those of speeds and `mfu` at least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import torch

from comt_cli.lab.bench.memory import mebibytes
from comt_cli.lab.bench.origin import origin_on
from comt_cli.lab.bench.peers import PEERS
from comt_cli.lab.bench.rounds import GoOn, always, compared, quickest, reliability
from comt_cli.lab.bench.shapes import Shape
from comt_cli.lab.bench.step_turns import Timed, steps_in_turns
from comt_cli.lab.bench.subjects import ARITHMETIC, GRAPHS, NONDETERMINISTIC, SUBJECTS, Subject, subject_of
from comt_cli.lab.bench.variants import CompileWhat, Variants, is_compiled
from comt_cli.models.build import model_of
from comt_cli.models.flops import flops_per_sample, parameter_count
from comt_cli.recipe.settings import Precision
from comt_cli.training.devices import peak_flops

Row = dict[str, Any]


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
    """Measure `variants` on `device`; yields lines of progress, and last the rows. Where `go_on` says no, no further
    variant is built, and a round ends unless it is the first.

    Where a batch does not fit in the device's memory it is halved for all; the uncompiled variants and other
    libraries' (`Subject.optional`) are left out instead. A variant that fails is reported (`Failed`), and the others
    are measured.
    """
    subject = subject_of(shape.size)

    def make(shape: Shape) -> Variants:
        return Variants(subject, shape, precision, device, compile_what)

    for news in steps_in_turns(shape, precision, variants, make, device, rounds, go_on):
        yield news if isinstance(news, str) else _rows(subject, news, precision, device, compile_what)


def _rows(
    subject: Subject, timed: Timed, precision: Precision, device: torch.device, compile_what: CompileWhat
) -> list[Row]:
    shape, plain, origin = timed.shape, subject.best_plain, origin_on(device)
    own_columns = {"device_type": device.type, "device_class": origin.device_class}
    best, best_forward = quickest(timed.step, plain), quickest(timed.forward, plain)
    in_graphs = {each for each in plain if each.endswith(GRAPHS)}
    plain_saved = min((timed.memory[each].saved for each in {*plain} & {*timed.memory} - in_graphs), default=None)
    timed_bases = {"plain", *(name.partition("-")[0] for name in timed.variants)}
    models = {name: model_of(shape.spec(base.method)) for name, base in subject.bases.items() if name in timed_bases}
    of_base = {name: flops_per_sample(model) for name, model in models.items()}
    arithmetic = {
        name: max(of_base[name] / of_base["plain"], parameter_count(model) / parameter_count(models["plain"]))
        for name, model in models.items()
    }
    flops = {name: of_base.get(name.partition("-")[0], of_base["plain"]) for name in ("plain", *timed.variants)}
    peak = peak_flops(device, precision)
    rows = []
    for name in timed.variants:
        step, forward, memory = timed.step[name], timed.forward[name], timed.memory[name]
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
            "mfu": None if peak is None else round(flops[name] * shape.batch / step.undisturbed / peak, 4),
            "flops_ratio_to_plain": round(flops[name] / flops["plain"], 4),
            **({ARITHMETIC: round(arithmetic[name.partition("-")[0]], 4)} if subject.counts_arithmetic else {}),
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
            **forward.columns("forward_ms", 3),
            **compared("forward_ratio_to_best_plain", timed.forward, name, best_forward),
            "saved_mib": mebibytes(memory.saved),
            "saved_ratio_to_plain": round(memory.saved / plain_saved, 4) if plain_saved else None,
            "peak_mib": mebibytes(memory.peak),
        }
        row |= subject.goals(row, device.type)
        what = "whole" if subject.is_peer(name) else compile_what  # nothing is known of a library's blocks
        rows.append(row | {"compiled": what if is_compiled(name) else "no"} | origin.versions())
    return rows
