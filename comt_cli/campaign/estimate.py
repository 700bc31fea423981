"""Estimated time of runs before training (`Estimator`), and remaining time during training (`TimeLeft`).

The time of a run is its FLOPs, including evaluations, divided by the FLOP/s of the most similar run finished on the
same kind of device: a run of the same network, else of the same kind with the nearest FLOPs per step. Without one, it
is a share of the device's peak. For a planned GPU the share is that of `comt bench step` on such a GPU if it is among
the shipped measurements, else assumed, and the peak is its data sheet's; here the peak is known or measured by a matrix
product. Runs trained at once share the cores or the GPUs. Torch-free unless a speed is measured.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any, NamedTuple

from comt_cli.campaign.processes import usable_cores, usual_threads
from comt_cli.files import Cache, read_csv, read_json
from comt_cli.kernels.measurements import SHIPPED
from comt_cli.models.accounting import code_version, cost_of, total_flops
from comt_cli.runs.plan import BY_ID, RunSpec
from comt_cli.training.events import Evaluating, Event, RunStarted, StepReport
from comt_cli.training.hardware import Hardware, chip_of

START_SECONDS = 10.0
"""Seconds of a worker before its first step: importing torch and opening the data."""
MOST_APART = 4.0
"""Largest ratio of the FLOPs per step of two networks with comparable speed."""
SPREAD = 0.5
"""An assumed share of the peak, or the speed of runs of another size, is right to this share of itself: 40 % stands for
20 % to 60 %. Published for language models: 33 to 39 % (torchtitan, 8B, H100), 41 to 51 % (nanochat, eight H100), 56 %
(TinyLlama, A100)."""
FORWARD_SHARE = 1 / 3
"""FLOPs of evaluating samples, relative to a training step on them."""
_VARIANT = re.compile("(plain|comt|transponder)-(compiled|fused)")  # the others are not deterministic, or not ours


class Finished(NamedTuple):
    """A finished run, with device and network as in its files."""

    device: str
    kind: tuple[str, str, Any]
    model: Any
    step_flops: float
    flops_per_second: float
    evaluated_samples: float


def finished_runs(runs: Path, where: Hardware, processes: int = 1) -> list[Finished]:
    """The runs below `runs` that are done and were trained on this kind of device. Unreadable ones are skipped."""
    found = []
    for file in sorted((runs / BY_ID).glob("*/result.json")):
        try:
            result, spec = read_json(file), read_json(file.with_name("spec.json"))
            if result["state"] != "done" or result["processes"] != processes or not _is_on(result["device"], where):
                continue
            settings, flops, samples = spec["settings"], float(result["flops"]), result["evaluation"]["samples"]
            train = settings["train"]
            kind = (spec["command"], train["precision"], train.get("objective"))
            numbers = (flops / result["steps"], flops / result["train_seconds"], float(samples))
            if all(1 <= number < 1e30 for number in numbers):  # the file may come from anywhere
                found.append(Finished(result["device"], kind, settings["model"], *numbers))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError):
            continue
    return found


def _is_on(device: str, where: Hardware) -> bool:
    """Whether a run's device is this one. The name of a CPU is followed by the number of threads."""
    if where.chip is not None:
        return chip_of(device) == where.name
    return device == where.name or (where.kind == "cpu" and device.startswith(f"{where.name}, "))


class Estimate(NamedTuple):
    """An expected number (seconds, FLOP/s, or a share of the peak), its range, and its source."""

    value: float
    least: float
    most: float
    source: str

    def times(self, factor: float) -> Estimate:
        return self._replace(value=self.value * factor, least=self.least * factor, most=self.most * factor)


class Estimator:
    """Estimates the time of runs: `at_once` at a time on `where`, each with `threads` (None: torch's default), or each
    by several `processes`. `finished` is the result of `finished_runs` for that device."""

    def __init__(
        self, finished: Sequence[Finished], where: Hardware, at_once: int, threads: int | None, processes: int = 1
    ) -> None:
        self.where, self.at_once, self.processes = where, at_once, processes
        self.threads = threads or usual_threads()
        self._finished = finished
        self._fastest: dict[str, float] = {}

    def of(self, spec: RunSpec, at_once: int | None = None) -> Estimate:
        """Seconds of a whole run when `at_once` runs share the device; with evaluations if a finished run is known."""
        flops, train, slower = total_flops(spec), spec.settings.train, self._slower(at_once or self.at_once)
        if near := self._similar(spec):
            like, speeds = near[0], [run.flops_per_second for run in near]
            evaluations = 1 + (train.steps - 1) // train.evaluate_every if train.evaluate_every else 1
            flops += evaluations * like.evaluated_samples * FORWARD_SHARE * cost_of(spec).flops_per_row
            spread = 0.0 if like.model == spec.settings.model.model_dump(mode="json") else SPREAD
            other, this = " of another size" if spread else "", "this" if self.where.chip is None else "such a"
            source = f"runs{other} finished on {this} device ({like.device})"
            speed = Estimate(speeds[0], min(speeds) * (1 - spread), max(speeds) * (1 + spread), source)
        else:
            speed = self._speed(spec)
        work = flops * slower
        return Estimate(work / speed.value, work / speed.most, work / speed.least, speed.source)

    def gpu_hours(self, spec: RunSpec) -> Estimate:
        """GPU-hours of a whole run."""
        return self.of(spec, at_once=1).times(self.processes / 3600)

    def makespan(self, specs: Iterable[RunSpec]) -> float:
        """Seconds until all of these runs are done, each training once; 0 without any."""
        distinct = {spec.id: spec for spec in specs}.values()
        at_once = min(self.at_once, len(distinct))
        return makespan((self.of(spec, at_once).value for spec in distinct), [START_SECONDS] * at_once)

    def _slower(self, at_once: int) -> float:
        """The factor by which a run is slower because it shares the cores or GPUs."""
        if self.where.kind != "cpu":
            return max(1.0, at_once / self.where.count)
        cores = usable_cores()  # more threads than cores do not make a single run faster
        return max(1.0, at_once * min(self.threads, cores) / cores)

    def _similar(self, spec: RunSpec) -> list[Finished]:
        """Finished runs of comparable speed, the most similar first; only of the same network if there are any."""
        model, flops = spec.settings.model.model_dump(mode="json"), total_flops(spec) / spec.settings.train.steps
        threads = f", {self.threads} thread{'s' if self.threads != 1 else ''}"

        def distance(run: Finished) -> tuple[bool | float, ...]:
            has_others = self.where.kind == "cpu" and not run.device.endswith(threads)
            return run.model != model, has_others, abs(math.log(run.step_flops / flops))

        alike = [run for run in self._finished if run.kind == _kind(spec)]
        same = [run for run in alike if run.model == model]
        near = same or [run for run in alike if 1 / MOST_APART <= run.step_flops / flops <= MOST_APART]
        return sorted(near, key=distance)

    def _speed(self, spec: RunSpec) -> Estimate:
        """FLOP/s of training without similar runs: a share of the peak in the data sheet if the device is not here,
        else of its known peak or of a measured matrix product (cached)."""
        where, precision, typical = self.where, spec.settings.train.precision, spec.task.typical_share
        share = Estimate(typical, typical * (1 - SPREAD), typical * (1 + SPREAD), "an assumption")
        # On CUDA each process has a device of its own; on the CPU they share the cores.
        devices = self.processes if where.kind == "cuda" else 1
        if where.chip is not None:
            peak = where.chip.fp32_flops if precision == "fp32" else where.chip.bf16_flops
            share = measured_share(spec, where.name, peak, share) or share
            most = f"{peak / 1e12:g} TFLOP/s in the data sheet of {where.name}"
            lossless = ", with no loss between devices" if self.processes > 1 else ""
            part = f"{share.value:.0%} (from {share.least:.0%} to {share.most:.0%})"
            return share.times(peak * devices)._replace(source=f"{share.source}: {part} of the {most}{lossless}")
        if precision not in self._fastest:
            key = [where.kind, where.name, self.threads if where.kind == "cpu" else 0, precision]
            speeds = Cache("speeds", code_version())
            if (found := speeds.get(key)) is None:
                import torch

                from comt_cli.training.devices import measured_matmul_flops, peak_flops

                device = torch.device(where.kind)
                found = peak_flops(device, precision) or measured_matmul_flops(device, precision, self.threads)
                speeds.put(key, found)
            self._fastest[precision] = float(found)
        source = "the speed of matrix products here (a rough estimate)"
        return share.times(self._fastest[precision] * devices)._replace(source=source)


def measured_share(spec: RunSpec, chip: str, peak: float, assumed: Estimate) -> Estimate | None:
    """Share of the peak that `comt bench step` measured on this GPU, for compiled LLaMAs in the run's precision; None
    without a measurement. It is that of the size with the nearest FLOPs per token, and of the fastest variant with the
    run's method, else without gates. The range is that of all variants; it includes that of the `assumed` share if the
    run's FLOPs per token are more than `MOST_APART` times as many or as few."""
    train = spec.settings.train
    rows = [
        row
        for file in sorted(SHIPPED.glob("*/step.csv"))
        for row in read_csv(file)
        if (chip_of(row["device"]), row["precision"]) == (chip, train.precision) and _VARIANT.fullmatch(row["variant"])
    ]
    if not (rows and train.compile and getattr(spec.settings.model, "family", None) == "llama"):
        return None
    wanted = cost_of(spec).flops_per_row / spec.task.positions(spec.settings)

    def apart(row: Mapping[str, str]) -> float:
        return abs(math.log(float(row["mfu"]) * peak / float(row["tokens_per_second"]) / wanted))

    nearest = min(rows, key=apart)
    shares = {row["variant"]: float(row["mfu"]) for row in rows if row["size"] == nearest["size"]}
    own = [name for name in shares if name.startswith(f"{spec.method['name']}-")]
    variant = max(own or [name for name in shares if name.startswith("plain-")], key=shares.__getitem__)
    ends = [*shares.values(), *((assumed.least, assumed.most) if apart(nearest) > math.log(MOST_APART) else ())]
    source = f"comt bench step on such a GPU ({variant} at {nearest['size']})"
    return Estimate(shares[variant], min(ends), max(ends), source)


def _kind(spec: RunSpec) -> tuple[str, str, Any]:
    """The key of runs with comparable FLOP/s: the verb, the precision and the objective (None if the task has only
    one). An objective may do work that FLOPs do not count."""
    train = spec.settings.train
    return spec.command, train.precision, getattr(train, "objective", None)


SETTLED_SECONDS = 2.0
"""Seconds for which a run must be observed before its own pace is used."""


@dataclass
class RunProgress:
    """Progress of one run. `first` and `last` are (time, step). The pace is measured from the end of the first step,
    which may compile."""

    spec: RunSpec
    began: bool = False
    step: int = 0
    report: StepReport | None = None
    evaluating: Evaluating | None = None
    first: tuple[float, int] | None = None
    last: tuple[float, int] = (0.0, 0)

    def receive(self, event: Event, now: float) -> None:
        """Update the progress by an event of the run."""
        match event:
            case RunStarted(step):
                self.began, self.step = True, step
            case StepReport(step):
                self.step, self.report, self.evaluating, self.last = step, event, None, (now, step)
                self.first = self.first or self.last
            case Evaluating():
                self.evaluating = event

    @property
    def total(self) -> int:
        """The number of steps."""
        return self.spec.settings.train.steps

    @property
    def pace(self) -> float | None:
        """Seconds per step; None until enough steps were observed."""
        if self.first is None or self.last[1] == self.first[1]:
            return None
        seconds = self.last[0] - self.first[0]
        return seconds / (self.last[1] - self.first[1]) if seconds >= SETTLED_SECONDS else None

    @cached_property
    def work(self) -> float:
        """The work of a step, in the task's unit."""
        return self.spec.settings.train.batch_size * self.spec.task.work(self.spec.settings)


class TimeLeft:
    """Remaining time of the `waiting` runs of a command and of its `running` ones, by worker. The time of a run is its
    steps times its pace (seconds per step): its own pace when known, else that of all runs, scaled by work per step."""

    def __init__(self, waiting: Iterable[RunSpec], clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.running: dict[int, RunProgress] = {}
        self._waiting = {spec.id: RunProgress(spec) for spec in waiting}
        self._ended: list[RunProgress] = []

    def take(self, worker: int, spec: RunSpec) -> None:
        """Record that a worker sets up a run."""
        self._waiting.pop(spec.id, None)
        self.running[worker] = RunProgress(spec)

    def receive(self, worker: int, event: Event) -> None:
        """Record an event of the worker's run, if it has one."""
        if worker in self.running:
            self.running[worker].receive(event, self._clock())

    def end(self, worker: int, *, is_left: bool = False) -> None:
        """Record the end of the worker's run. If it `is_left`, another worker takes it."""
        if run := self.running.pop(worker, None):
            self._ended.append(run)
            if is_left:
                self._waiting = {run.spec.id: RunProgress(run.spec), **self._waiting}

    def of_run(self, run: RunProgress) -> float | None:
        """Seconds until a run has its result; None if unknown."""
        known = [each for each in (*self._ended, *self.running.values()) if each.pace]
        pace = run.pace or (run.work * fmean((each.pace or 0.0) / each.work for each in known) if known else None)
        since = self._clock() - run.last[0] if run.first is not None else 0.0
        return None if pace is None else max(0.0, pace * (run.total - run.step) - since)

    def of_all(self, workers: int) -> float | None:
        """Seconds until `workers` workers have trained everything; None if unknown."""
        free, waiting = ([self.of_run(run) for run in runs.values()] for runs in (self.running, self._waiting))
        if None in (*free, *waiting):
            return None
        ends = [seconds or 0.0 for seconds in free] + [0.0] * (workers - len(free))
        return makespan((seconds or 0.0 for seconds in waiting), ends)


def makespan(seconds: Iterable[float], free: Sequence[float]) -> float:
    """The time at which the last of these runs ends if workers, free at the times `free`, take the next in turn."""
    ends = list(free)
    heapq.heapify(ends)
    for length in seconds:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends, default=0.0)
