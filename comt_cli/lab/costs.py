"""Costs of a training step of every row of a recipe, relative to the baseline: time, memory, bytes and FLOPs.

The networks are those of the rows' runs, on noise, with the kernels that `train.kernels` chooses, in the recipe's
precision. A step is a forward and a backward pass over a batch or micro-batch, and an update: uncompiled if the recipe
trains so, and compiled if the task allows it; not in CUDA graphs. `bytes`: read and written by the compiled passes, as
the compiler counts them: every input and output of a fused kernel, a product and an operator of ours once. The
vocabulary's head with its loss, and the update, are not compiled and not counted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import typer
from torch._inductor import metrics
from torch._inductor.utils import fresh_cache

from comt_cli.errors import UserError
from comt_cli.lab.runner import Built, Case, Row, Session, Unavailable, run_cases
from comt_cli.lab.step import TrainedNetwork
from comt_cli.lab.timing import Part, Times, compared, mebibytes, saved_bytes
from comt_cli.models.accounting import cost_of
from comt_cli.report.exhibits.costs import network_key, other_device, write_costs
from comt_cli.report.write import place
from comt_cli.runs.plan import RunSpec
from comt_cli.training.devices import device_name
from comt_cli.training.objective import prepare_compiler
from comt_cli.verbs.plan import Planned

HOW = ("step", "compiled_step")
"""The timed step, uncompiled and compiled; only one of them if the recipe compiles or the task cannot."""


def measure_recipe(planned: Planned, device: torch.device, rounds: int, minutes: float | None, results: Path) -> None:
    """Measure and write the planned rows, column by column. Raises `UserError` if another device's rows are there."""
    loaded, scale, baseline = planned.loaded, planned.scale, planned.loaded.recipe.baseline
    path = place(results, scale, loaded, "-costs.csv")
    if (other := other_device(path, device_name(device))) is not None:
        raise UserError(f"{path} was measured on {other}", "Delete it, or write elsewhere with --results DIR.")
    columns: dict[str, dict[str, RunSpec]] = {}
    for spec in planned.specs:
        columns.setdefault(spec.column, {}).setdefault(spec.row, spec)

    def write(column: str, rows: list[Row]) -> list[Path]:
        keys = {row: network_key(spec) for row, spec in columns[column].items()}
        lines = [{**row, "scale": scale, "network": keys[row["row"]], "baseline_network": keys[baseline]}
                 for row in rows]  # fmt: skip
        order = [*loaded.recipe.rows], [*loaded.recipe.columns_at(scale)]
        files, kept = write_costs(path, lines, loaded.recipe.title, *order)
        for name in kept:
            typer.echo(f"{name}: not written, since {path} has a measurement with more rounds", err=True)
        return files

    with Session(rounds, minutes, write) as session:
        for specs in columns.values():
            with fresh_cache():  # code of another process, or column, would be reused without being counted
                run_cases([CostCase(specs, baseline, device)], session)


class CostCase(Case):
    """The rows of one column of a recipe, and its `baseline`. All networks must fit in the device's memory together."""

    def __init__(self, specs: Mapping[str, RunSpec], baseline: str, device: torch.device) -> None:
        self.page = self.what = next(iter(specs.values())).column
        self.keys, self.device = sorted(specs, key=lambda row: row != baseline), device
        self.specs, self.baseline = specs, baseline
        self.deterministic = all(each.settings.train.deterministic for each in specs.values())

    def build(self, key: str, shared: dict[Any, Any]) -> Built:
        if key != self.baseline and self.baseline not in shared:
            raise Unavailable(f"there is no {self.baseline} to compare it with")
        spec, train = self.specs[key], self.specs[key].settings.train
        samples = min(train.micro_batch_size or train.batch_size, train.batch_size)
        network, can, read = TrainedNetwork(spec, samples, self.device), can_compile(spec), None
        hows = [how for how, there in zip(HOW, (not train.compile, can), strict=True) if there]
        objectives = {how: network.form(train.kernels, compiled=how == HOW[1])[0] for how in hows}
        forms = {how: network.prepared(objective) for how, objective in objectives.items()}
        if can:
            objectives[HOW[1]].compile_model()
            read = bytes_while_compiling(forms[HOW[1]].step)
        saved = saved_bytes(forms[hows[-1]].loss, network.model.parameters())
        shared[key] = network
        prepare_compiler(versions=16 * len(self.keys))  # counted alone: the rest is from the compiler's cache
        return Built({how: form.step for how, form in forms.items()}, (samples, read, saved))

    def rows(self, ready: Mapping[str, Built], times: Mapping[tuple[str, str], Times]) -> list[Row]:
        plain_samples, *plain_bytes = ready[self.baseline].facts
        plain_flops = cost_of(self.specs[self.baseline]).flops_per_row * plain_samples
        rounds, rows = max(len(each.seconds) for each in times.values()), []
        for name, built in ready.items():
            spec, (samples, *counted) = self.specs[name], built.facts
            cost = cost_of(spec)
            flops = cost.flops_per_row * samples
            row: Row = {"row": name, "column": spec.column, "baseline": self.baseline}
            row |= {"device": device_name(self.device), "precision": spec.settings.train.precision}
            row |= {"samples": samples, "rounds": rounds, "parameters": cost.parameters, "flops": flops}
            row["flops_ratio"] = round(flops / plain_flops, 4)
            for what, of, to in zip(("bytes", "saved"), counted, plain_bytes, strict=True):
                row |= {f"{what}_mib": mebibytes(of), f"{what}_ratio": round(of / to, 4) if of and to else None}
            for how in HOW:
                row |= dict.fromkeys(f"{how}_ms{end}" for end in ("", "_p10", "_p90"))
                row |= times[how, name].columns(f"{how}_ms", 3) if (how, name) in times else {}
                row |= compared(f"{how}_ratio", times, (how, name), (how, self.baseline))
            rows.append(row)
        return rows


def can_compile(spec: RunSpec) -> bool:
    """Whether the settings allow `train.compile`; tasks whose batches have many shapes refuse it."""
    given = spec.settings.model_dump()
    given["train"] |= {"compile": True}
    try:
        type(spec.settings).model_validate(given)
    except ValueError:
        return False
    return True


def bytes_while_compiling(part: Part) -> int | None:
    """Bytes that the compiled code of `part` reads and writes, counted by the compiler for its log; None for 0."""
    log = logging.getLogger("torch._inductor.compile_fx.__inductor_metrics")
    before = log.level, log.propagate
    log.setLevel(logging.INFO)
    log.propagate = False
    metrics.reset()
    try:
        part()
    finally:
        log.level, log.propagate = before
    return int(metrics.num_bytes_accessed) or None
