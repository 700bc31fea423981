"""What a training step of every row of a recipe costs beside the baseline's: time, memory, bytes and FLOPs.

The networks are those of the rows' own runs, on noise, with the kernels that `train.kernels` chooses, in the precision
of the recipe. A step is a forward and a backward pass over a batch (of a micro-batch, where the recipe has them), and
an update. Steps are timed in turns (`rounds`): uncompiled, where the recipe trains so, and compiled, where the task can
be; nothing is captured in CUDA graphs.

`bytes` is what the compiled passes, forward and backward, read and write, as the compiler counts it: every input and
output of a fused kernel once, whatever caches keep; those of a matrix product and of an operator of ours as well. What
is not compiled is not in it: a vocabulary's head with its loss, and the update. Where no compiler can be asked there is
none.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from comt_cli.kernels.choice import use_tiles
from comt_cli.lab.bench.ending import failed
from comt_cli.lab.bench.memory import free, mebibytes, saved_bytes
from comt_cli.lab.bench.origin import origin_on
from comt_cli.lab.bench.rounds import GoOn, Part, Times, always, compared, told_turns
from comt_cli.lab.bench.variants import as_trained, built_run, mean_loss, noise, place_masks, share_parameters
from comt_cli.models.accounting import cost_of
from comt_cli.models.build import materialise
from comt_cli.models.kernels import use_kernels
from comt_cli.runs.plan import RunSpec
from comt_cli.training.devices import prepare_process, product_dtype
from comt_cli.training.objective import prepare_compiler
from comt_cli.training.tasks.base import TaskRun

Row = dict[str, Any]
HOW = ("step", "compiled_step")
"""What is timed: the step uncompiled and compiled; one of the two where the recipe compiles, or its task refuses to."""
_VERSIONS = 16
"""Versions of one function that each network may take in the compiler's memory."""


def measure_costs(
    specs: Sequence[RunSpec], baseline: str, device: torch.device, rounds: int, go_on: GoOn = always
) -> Iterator[str | list[Row]]:
    """Measure the step of every spec, one a row of one column of a recipe, the row `baseline` among them; yields lines
    of progress, and last the rows.

    A row that cannot be built is reported (`Failed`), and the others are measured; without the baseline there is
    nothing to compare with, and so no row. All networks are there at once, and so must fit in the device's memory.
    `go_on` is asked before each row is built, before the steps are compiled, and before each turn (`rounds.in_turns`).
    """
    from torch._inductor.utils import fresh_cache

    use_tiles((), only=True)  # of another column
    prepare_process(device, deterministic=all(spec.settings.train.deterministic for spec in specs))
    steps: dict[str, _Step] = {}
    with fresh_cache():  # code that another process has left would be taken uncounted
        for spec in sorted(specs, key=lambda spec: spec.row != baseline):  # first that without which there is no row
            if not go_on():
                yield f"{spec.row}, {spec.column}: left out for want of time"
                continue
            begin, problem = time.perf_counter(), None
            try:
                steps[spec.row] = _Step(spec, device)
            except Exception as error:
                problem = failed(f"{spec.row}, {spec.column}", error)
            if problem is not None:
                free(device)  # the error's trace is gone, and with it what it held
            yield problem or f"{spec.row}, {spec.column}: ready after {time.perf_counter() - begin:.1f} s"
        if baseline in steps and not go_on():
            yield f"timing the rows of {specs[0].column}: left out for want of time"
        elif baseline in steps:
            try:
                torch._dynamo.reset()  # each was compiled by itself: now all, from what the compiler kept on disk
                parts = {(how, row): part for row, step in steps.items() for how, part in step.parts().items()}
                prepare_compiler(versions=_VERSIONS * len(steps), keep_others=True)
                times = yield from told_turns("", parts, rounds, device, go_on, warm_up=2)
                yield [_row(step, steps[baseline], times, device) for step in steps.values()]
            except Exception as error:
                yield failed(f"timing the rows of {specs[0].column}", error)
    steps.clear()
    torch._dynamo.reset()
    free(device)


def _row(step: _Step, baseline: _Step, times: Mapping[tuple[str, str], Times], device: torch.device) -> Row:
    cost, plain, origin = cost_of(step.spec), cost_of(baseline.spec), origin_on(device)
    row: Row = {
        "row": step.spec.row,
        "column": step.spec.column,
        "baseline": baseline.spec.row,
        "device": origin.device,
        "precision": step.spec.settings.train.precision,
        "samples": step.samples,
        "rounds": max(len(each.seconds) for each in times.values()),
        "parameters": cost.parameters,
        "flops": cost.flops_per_row * step.samples,
        "flops_ratio": _over(cost.flops_per_row * step.samples, plain.flops_per_row * baseline.samples),
        "bytes_mib": mebibytes(step.bytes),
        "bytes_ratio": _over(step.bytes, baseline.bytes),
        "saved_mib": mebibytes(step.saved),
        "saved_ratio": _over(step.saved, baseline.saved),
    }
    for how in HOW:
        key, to = (how, step.spec.row), (how, baseline.spec.row)
        of = times.get(key)
        row |= (
            dict.fromkeys(f"{how}_ms{end}" for end in ("", "_p10", "_p90"))
            if of is None
            else of.columns(f"{how}_ms", 3)
        )
        row |= compared(f"{how}_ratio", times, key, None if of is None else to)
    return row | origin.versions()


def _over(of: int | None, to: int | None) -> float | None:
    return None if of is None or not to else round(of / to, 4)


class _Step:
    """The training step of one row: its network with weights and optimiser, on a batch of noise.

    Attributes:
        samples: those of a batch, or of a micro-batch where the recipe has them.
        bytes: what the compiled passes read and write; None where its task cannot be compiled.
        saved: bytes that a forward pass, compiled where that is possible, keeps for the backward pass.
    """

    def __init__(self, spec: RunSpec, device: torch.device) -> None:
        self.spec, self.device = _without_data(spec), device
        train = self.spec.settings.train
        self.samples = min(train.micro_batch_size or train.batch_size, train.batch_size)
        run = built_run(self.spec, device)
        self.inputs = noise(run, self.samples, device)
        materialise(run.model, device, seed=0)
        as_trained(run.model, run, train.precision)
        self.optimizer = run.optimizer(run.model, spec.settings)
        self._runs: dict[bool, TaskRun[Any]] = {}
        self.bytes: int | None = None
        if can_compile(spec):
            self._runs[True] = self._sharing(run, compiled=True)
            torch._dynamo.reset()
            self._runs[True].objective.compile_model(keep_others=True)
            with _counting() as counted:
                self._step(self._runs[True])()
            self.bytes = counted()
        if not train.compile:
            self._runs[False] = self._sharing(run, compiled=False)
        first = next(iter(self._runs.values()))
        self.saved = saved_bytes(lambda: self._loss(first), first.model.parameters())

    def parts(self) -> dict[str, Part]:
        """The steps to time, by `HOW`; the compiled one is to be compiled anew."""
        for compiled, run in self._runs.items():
            if compiled:
                run.objective.compile_model(keep_others=True)
        return {HOW[compiled]: self._step(run) for compiled, run in self._runs.items()}

    def _sharing(self, run: TaskRun[Any], *, compiled: bool) -> TaskRun[Any]:
        """The same network once more, which trains the same parameters, with kernels as they would be chosen."""
        other, train = built_run(self.spec, self.device), self.spec.settings.train
        share_parameters(other.model, run.model, self.device)
        place_masks(other.model, self.inputs, self.device)
        dtype, tokens = product_dtype(train.precision), self.samples * self.spec.task.positions(self.spec.settings)
        use_kernels(other.model, train.kernels, self.device, dtype, compiled=compiled, tokens=tokens)
        return other

    def _loss(self, run: TaskRun[Any]) -> Tensor:
        return mean_loss(run.objective, self.inputs, self.spec.settings.train.precision, self.device)

    def _step(self, run: TaskRun[Any]) -> Part:
        def step() -> None:
            torch.autograd.backward(self._loss(run))
            if (limit := self.spec.settings.train.gradient_clipping) > 0:
                torch.nn.utils.clip_grad_norm_(run.model.parameters(), limit)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

        return step


def _without_data(spec: RunSpec) -> RunSpec:
    """The run without a part of the validation data that is kept for testing: there is no data."""
    settings = spec.settings
    if getattr(settings.train, "test_share", None) is None:
        return spec
    train = settings.train.model_copy(update={"test_share": None})
    return spec.model_copy(update={"settings": settings.model_copy(update={"train": train})})


def can_compile(spec: RunSpec) -> bool:
    """Whether its settings would allow `train.compile`: where batches have many shapes a task refuses it."""
    given = spec.settings.model_dump()
    type(spec.settings).model_validate(given)
    given["train"] |= {"compile": True}
    try:
        type(spec.settings).model_validate(given)
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def _counting() -> Iterator[Callable[[], int | None]]:
    """Makes the compiler count what its code reads and writes; gives what it has counted, None where that is nothing.

    It counts where its log of that name is wanted, which goes nowhere here.
    """
    from torch._inductor import metrics

    log = logging.getLogger("torch._inductor.compile_fx.__inductor_metrics")
    before = log.level, log.propagate
    log.setLevel(logging.INFO)
    log.propagate = False
    metrics.reset()
    try:
        yield lambda: int(metrics.num_bytes_accessed) or None
    finally:
        log.level, log.propagate = before
