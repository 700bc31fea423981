"""How long runs are likely to take, from what is known of this very device. Torch-free except where a step is measured.

The time of a run is its FLOPs, evaluations included, over the FLOP/s that training reaches. These come from the first
that is there of: the most similar finished run of this device (the same network and batch, else the same network, else
the same kind of network, nearest in the FLOPs of a step and not far from them); a training step of the first such run,
measured where it is small; the speed of a matrix product, of which training reaches a typical share. Runs that are
trained at once share the cores, or the GPUs. A table takes as long as its open runs do when each worker takes the next
one as soon as it is free, plus the start of a worker.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comt_cli.campaign.jobs import usable_cores, usual_threads
from comt_cli.campaign.plan_for import planned_speed
from comt_cli.files import read_json
from comt_cli.line_cache import LineCache, line_cache
from comt_cli.models.accounting import code_version, cost_of, total_flops
from comt_cli.models.cost import network_of
from comt_cli.runs.plan import BY_ID, RunSpec
from comt_cli.training.chips import chip_of
from comt_cli.training.hardware import Hardware

START_SECONDS = 10.0
"""What a worker needs before its first step: torch and the data."""
MOST_APART = 4.0
"""How many times the FLOPs of a step, or what part of them, another network may have for its speed to be comparable."""
FORWARD_SHARE = 1 / 3
"""The part of a training step's FLOPs that evaluating the same samples takes."""


@dataclass(frozen=True)
class Finished:
    """A finished run: its network as in `spec.json`, what it minimised (None where its task has one objective), samples
    of a batch, FLOPs of a step, FLOP/s of its training, and
    samples of an evaluation."""

    device: str
    command: str
    model: Any
    method: Any
    precision: str
    objective: Any
    batch_size: int
    step_flops: float
    flops_per_second: float
    evaluated_samples: float


def finished_runs(runs: Path, where: Hardware, processes: int = 1) -> list[Finished]:
    """The runs below `runs` that are done and were trained on such a device. What cannot be read is skipped."""
    found = []
    for file in sorted((runs / BY_ID).glob("*/result.json")):
        try:
            result = read_json(file)
            device = str(result["device"])
            if result["state"] != "done" or result["processes"] != processes or not _is_on(device, where):
                continue
            found.append(_finished(device, read_json(file.with_name("spec.json")), result))
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError):
            continue
    return found


def _is_on(device: str, where: Hardware) -> bool:
    """Whether a run's device is of this name; a processor's has the number of threads behind it, a GPU's that is
    planned for its maker's words around it."""
    if where.chip is not None:
        return chip_of(device) == where.name
    return device == where.name or (where.kind == "cpu" and device.startswith(f"{where.name}, "))


def _finished(device: str, spec: dict[str, Any], result: dict[str, Any]) -> Finished:
    model, train = spec["settings"]["model"], spec["settings"]["train"]
    flops, evaluation = _plausible(result["flops"]), result["evaluation"]
    if "samples" in evaluation:
        samples = _plausible(evaluation["samples"])
    else:  # earlier versions recorded the batches of some tasks
        samples = _plausible(evaluation["batches"]) * _plausible(evaluation["batch_size"])
    return Finished(
        device=device,
        command=spec["command"],
        model=model,
        method=spec["method"],
        precision=train["precision"],
        objective=train.get("objective"),
        batch_size=int(train["batch_size"]),
        step_flops=_plausible(flops / _plausible(result["steps"])),
        flops_per_second=_plausible(flops / float(result["train_seconds"])),
        evaluated_samples=_plausible(samples),
    )


def _plausible(value: Any) -> float:
    """A count, FLOPs or FLOP/s of a file that may come from anywhere. Raises `ValueError` where no run has so many."""
    if not 1 <= float(value) < 1e30:
        raise ValueError(value)
    return float(value)


@dataclass(frozen=True)
class Estimate:
    """Seconds that a run is likely to take, and where that comes from."""

    seconds: float
    source: str


class Estimator:
    """Estimates runs that are trained `at_once` on `where`, each with `threads` (None: as torch chooses), or by several
    `processes`. `finished` are those of `finished_runs` there."""

    def __init__(
        self, finished: Sequence[Finished], where: Hardware, at_once: int, threads: int | None, processes: int = 1
    ) -> None:
        self.where, self.at_once, self.processes = where, at_once, processes
        self.threads = threads or usual_threads()
        self._finished = finished
        self._reached: dict[tuple[str, str, Any], tuple[float, str]] = {}

    def of(self, spec: RunSpec, at_once: int | None = None) -> Estimate:
        """The whole run, one of so many at once (None: of as many as there may be): its steps, and its evaluations
        where a finished run has recorded their size."""
        alone = self._alone(spec)
        return replace(alone, seconds=alone.seconds * self._slower(at_once or self.at_once))

    def _slower(self, at_once: int) -> float:
        """How many times as long a run takes for having to share the processor's cores, or the GPUs, with others."""
        if self.where.kind != "cpu":
            return max(1.0, at_once / self.where.count)
        cores = usable_cores()  # more threads than these are as slow already where one run has them to itself
        return max(1.0, at_once * min(self.threads, cores) / cores)

    def _alone(self, spec: RunSpec) -> Estimate:
        flops = total_flops(spec)
        like = self._most_similar(spec)
        if like is None:
            reached, source = self._measured(spec)
            return Estimate(flops / reached, source)
        every = spec.settings.train.evaluate_every
        evaluations = 1 + (spec.settings.train.steps - 1) // every if every else 1
        flops += evaluations * like.evaluated_samples * FORWARD_SHARE * cost_of(spec).flops_per_row
        other = "" if like.model == _model(spec) else " of another size"
        this = "this device" if self.where.chip is None else "such a device"
        return Estimate(flops / like.flops_per_second, f"runs{other} finished on {this} ({like.device})")

    def _most_similar(self, spec: RunSpec) -> Finished | None:
        train = spec.settings.train
        model, step_flops = _model(spec), total_flops(spec) / train.steps
        there = [
            run
            for run in self._finished
            if (run.command, run.precision, run.objective) == _kind(spec)
            and (run.model == model or 1 / MOST_APART <= run.step_flops / step_flops <= MOST_APART)
        ]
        threads = f", {self.threads} thread{'s' if self.threads != 1 else ''}"

        def distance(run: Finished) -> tuple[bool | float, ...]:
            return (
                run.model != model,
                run.method != spec.method,
                run.batch_size != train.batch_size,
                self.where.kind == "cpu" and not run.device.endswith(threads),
                abs(math.log(run.step_flops) - math.log(step_flops)),
            )

        return min(there, key=distance, default=None)

    def _measured(self, spec: RunSpec) -> tuple[float, str]:
        """FLOP/s of a network's kind, measured on the first that is asked for, or by an earlier process; of a device
        that is not here, as `plan_for` has it."""
        if self.where.chip is not None:
            return planned_speed(spec, self.where, self.processes)
        kind = _kind(spec)
        if kind not in self._reached:
            self._reached[kind] = self._remembered(spec) or self._measure(spec)
        return self._reached[kind]

    def _key(self, spec: RunSpec) -> list[Any]:
        network, train = network_of(spec), spec.settings.train
        rows = min(train.micro_batch_size or train.batch_size, train.batch_size)
        device = [self.where.kind, self.where.name, self.threads if self.where.kind == "cpu" else 0, self.processes]
        return [*device, network.model, network.dimensions, rows, *_kind(spec)[1:]]

    def _remembered(self, spec: RunSpec) -> tuple[float, str] | None:
        found = _speeds().get(self._key(spec))
        match found:
            case [float(reached), str(source)] if 0 < reached < math.inf:
                return reached, source
        return None

    def _measure(self, spec: RunSpec) -> tuple[float, str]:
        import torch

        from comt_cli.training import speed

        device = torch.device(self.where.kind)
        reached = speed.measured_step_flops(spec, device, self.threads)
        source = "a training step measured here"
        if reached is None:
            precision, share = spec.settings.train.precision, spec.task.typical_share
            reached = speed.estimated_flops_per_second(device, precision, share)
            source = "the speed of matrix products here, and rough"
        if self.where.kind == "cuda":  # each has its own; on the CPU they share the cores
            reached *= self.processes
        _speeds().put(self._key(spec), [reached, source])
        return reached, source


def _kind(spec: RunSpec) -> tuple[str, str, Any]:
    """What runs must share for their FLOP/s to be comparable: the verb, the precision, and what is minimised, since an
    objective may do work that FLOPs do not count."""
    train = spec.settings.train
    return spec.command, train.precision, getattr(train, "objective", None)


def _model(spec: RunSpec) -> dict[str, Any]:
    """The network's settings as `spec.json` has them."""
    return spec.settings.model.model_dump(mode="json")


def _speeds() -> LineCache:
    return line_cache("speeds", code_version())


def makespan(seconds: Iterable[float], workers: int, start: float = START_SECONDS) -> float:
    """When the last of these runs ends, if each of so many workers takes the next as soon as it is free; 0 without
    runs."""
    lengths: Sequence[float] = list(seconds)
    if not lengths:
        return 0.0
    free = [start] * max(1, min(workers, len(lengths)))
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free)
