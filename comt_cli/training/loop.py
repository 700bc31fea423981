"""The training loop: one run from its first step, or a checkpoint, to its result; and evaluations of finished runs."""

from __future__ import annotations

import contextlib
import datetime
import math
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from comt_cli import __version__
from comt_cli.commit import git_commit
from comt_cli.data.split import Split
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.files import write_json
from comt_cli.kernels.choice import Choice
from comt_cli.models.build import new_parts
from comt_cli.models.pretrained import is_part
from comt_cli.runs.directory import BeingTrained, RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.base import AnyDataset
from comt_cli.training.checkpoint import load_weights, merge_lora, resume
from comt_cli.training.devices import device_name, peak_memory_bytes, prepare_process
from comt_cli.training.evaluation import Evaluation, finite
from comt_cli.training.events import Evaluating, Listener, Note, RunStarted, StepReport, ignore
from comt_cli.training.observation import observe
from comt_cli.training.parallel import World, distribute
from comt_cli.training.processes import StopSignal, check_graphs, share_of_batch
from comt_cli.training.record import Clock, RunWriter, mfu
from comt_cli.training.start import load_start
from comt_cli.training.tasks import run_class
from comt_cli.training.update import Updater, all_finite, learning_rate, optimizer_of

ASK_EVERY = 8
"""Steps between the exchanges in which processes ask each other for stop signals; each waits for the device."""

MOST = 0.01
"""The share of the training time from which on a note says that observations take long."""


class Training:
    """One run in one process of a `World`. `began` is True once `run` has begun to train. `stopped_by` is the signal
    that stopped it in any process, 0 without one. `outputs` is the folder for the outputs of evaluations per sample."""

    def __init__(
        self,
        spec: RunSpec,
        directory: RunDirectory,
        dataset: AnyDataset,
        world: World,
        listener: Listener,
        stop: StopSignal,
    ) -> None:
        self.spec, self.directory, self.dataset = spec, directory, dataset
        self.world, self.listener, self.stop = world, listener, stop
        self.task = run_class(spec.task)(spec, dataset, world)
        self.settings = self.task.settings
        self.local_rows = share_of_batch(self.settings.batch_size, world.size)
        check_graphs(self.settings.captures, world.size)
        self.outputs = directory.path / "outputs"
        self.began, self.stopped_by = False, 0
        self._ends_with_last = self.settings.select != "best" and not self.settings.averaged_steps
        rows = self.settings.evaluation_batch_size, self.task.evaluation_rows, self.task.rows_at_once
        self._evaluation_rows = next(filter(None, rows))

    def run(self) -> dict[str, Any]:
        """Train or resume until the last step, a stop signal, or a loss that is not finite. Returns the content of
        `result.json`. Raises `RunInterrupted` (the state is saved), `BeingTrained` (in all processes of the world),
        `UserError`, `StorageError` (the last checkpoint is intact)."""
        with contextlib.ExitStack() as resources:
            finished = self.world.broadcast(self._take(resources) if self.world.is_main else None)
            if isinstance(finished, BeingTrained):
                raise finished
            if isinstance(finished, dict):
                return finished
            if self.world.is_main:
                self.directory.create(self.spec)
            self._check_data()
            self._set_up(resources)
            return self._train()

    def _check_data(self) -> None:
        if self.dataset.content_hash != self.spec.data_content:
            name = self.spec.task.data_name(self.spec.settings)
            said = f"the data {name} has changed since {self.directory.shown} was planned"
            raise UserError(said, "Restore it, or run the command again, which plans and trains runs on the new data.")

    def _take(self, resources: contextlib.ExitStack) -> dict[str, Any] | BeingTrained | None:
        """Take the run's lock. Returns the refusal, or the result if another process has finished the run meanwhile."""
        try:
            resources.enter_context(self.directory.lock())
        except BeingTrained as refused:
            return refused
        result = self.directory.result()
        if result is not None:
            self.directory.remove_weights(self.settings.temporary_steps)
        return result

    def evaluations(self) -> dict[str, Evaluation]:
        """Evaluations by split of a run that is done; its directory is not changed. Raises `UserError`."""
        self._check_data()
        self.task.captured = False
        self._load()
        if self.counters.step != self.settings.steps:
            raise UserError(f"{self.directory.checkpoint_file} is missing, or not from the last step")
        splits = {"validation": self.task.validation, **self.task.tests}
        return {name: self._evaluate(split, "final") for name, split in splits.items()}

    def _load(self) -> dict[str, Choice]:
        """Make the model and restore its checkpoint if there is one. Returns the choices of kernels."""
        prepare_process(self.world.device, deterministic=self.settings.deterministic)
        torch.manual_seed(self.spec.seed)
        task = self.task
        task.build()
        self.model = task.model
        kernels = task.use_kernels()
        if self.settings.kernels == "fused":
            for op, choice in kernels.items():
                if not choice.fused:
                    self._note(f"train.kernels is fused, but {op} has no fused kernel here: {choice.reason}")
        task.place()
        new = new_parts(self.spec, task.model)
        added = {parameter for name, parameter in task.model.named_parameters() if is_part(name, new)}
        self.optimizer = optimizer_of(task.model, self.settings, added)
        self.counters = resume(self.directory.checkpoint_file, task, self.optimizer)
        self.saved_step = self.counters.step
        return kernels

    def _set_up(self, resources: contextlib.ExitStack) -> None:
        task = self.task
        if task.captured:
            resources.callback(torch._dynamo.reset)  # frees the graphs' memory for the next run in this process
        kernels = self._load()
        if self.world.is_main:
            counters = self.counters
            is_final = counters.step == self.settings.steps and (self._ends_with_last or bool(counters.chosen))
            self.directory.remove_outputs(counters.step, is_final=is_final)
        if self.spec.start is not None and not self.counters.step:  # later its own checkpoint suffices
            load_start(task, self.directory)
        self.updater = Updater(task, distribute(task.objective, self.world), self.optimizer)
        # Compiling kernels and setting up the order of gradient sums do not count as training time.
        compiles_kernels = self.world.device.type == "cuda" and any(choice.fused for choice in kernels.values())
        if self.settings.compile or self.world.size > 1 or compiles_kernels:
            rows = task.rows_at_once
            splits, most = (task.validation, *task.tests.values()), self._evaluation_rows
            used = [task.evaluation_batches(most, split).used for split in splits] if task.captured else []
            evaluated = sorted({min(most, each) for each in used})
            if refused := self.updater.warm_up(sorted({rows, self.local_rows % rows} - {0}), evaluated):
                self._note(f"{refused}; the run continues without CUDA graphs")
        self.writer = RunWriter(task, self.directory, self.counters, resources, self.listener, kernels)
        self.clock = Clock(self.world.device, self.counters, self.spec)
        if changed := self.writer.environment.get("differs"):
            begun = f"the environment has changed since the run began ({', '.join(changed)})"
            self._note(f"{begun}: its last bits may differ from those of an uninterrupted run")
        if caution := task.caution(self.local_rows):
            self._note(caution)

    def _train(self) -> dict[str, Any]:
        settings, counters = self.settings, self.counters
        self.listener(RunStarted(counters.step))
        self.began = True
        unseen: list[tuple[Tensor, int, int]] = []
        if "evaluate" in self.due(counters.step):  # the step was saved before its evaluation
            self._validate()
        with self.task.train_batches(self.task.rows_at_once, counters.step) as batches:
            self.clock.start(batches.waited_seconds)
            for micro_batches in batches:
                total, due = batches.targets(counters.step), self.due(counters.step + 1)
                wants = {"wants_norm": "log" in due, "wants_observed": "norms" in due}
                loss, norm, observed_norms = self.updater.step(micro_batches, total, counters.step, **wants)
                counters.step += 1
                counters.tokens += total
                unseen.append((loss, counters.step, counters.tokens))
                asked = not due.isdisjoint(("log", "save")) or counters.step % ASK_EVERY == 0
                if self._is_stopped(asked=asked) and counters.step < settings.steps:
                    due.add("stop")
                if due:
                    self.clock.lap(batches.waited_seconds)
                    if not all_finite(unseen, counters):
                        return self.writer.diverged()
                if "log" in due:
                    self.writer.step(float(loss), learning_rate(settings, counters.step - 1), norm, self.clock)
                    self._report(float(loss))
                self.writer.gradients(observed_norms)
                if "observe" in due and (self.world.is_main or self.task.sharding != "none"):
                    self._observe()
                if "keep" in due:  # before the step is saved: a run that resumes there does not write them again
                    self.writer.weights(self.directory.weights_file(counters.step))
                if "stop" in due:
                    self._interrupt()
                if "save" in due:
                    self._save(final=counters.step == settings.steps)
                if "evaluate" in due:
                    self._validate()
                if not due.isdisjoint(("observe", "keep", "save", "evaluate")):  # do not time these
                    self.clock.start(batches.waited_seconds)
        return self._finish()

    def _observe(self) -> None:
        """Log gates and residual stream. A note at the interval's first end says if that takes more than `MOST`."""
        began = time.perf_counter()
        self.writer.observation(observe(self.task))
        counters, every = self.counters, self.settings.observe_every
        steps = (time.perf_counter() - began) * counters.timed_steps / max(counters.seconds, 1e-9)
        if counters.step == every and steps > MOST * every:
            least = math.ceil(steps / MOST)
            said = f"an observation takes {steps:.2g} times as long as a step, and with observe_every {every} more than"
            self._note(f"{said} {MOST:.0%} of the time; train.observe_every={least} takes less")

    def due(self, step: int) -> set[str]:
        """The actions due at the end of `step`, counted from 1. `_finish` evaluates the last step."""
        settings, steps, first = self.settings, self.settings.steps, step == 1
        norms_every, evaluate_every = self.task.norms_every, settings.evaluate_every
        observe_every = settings.observe_every
        is_due = {
            "log": step % settings.log_every == 0 or first or step == steps,
            "norms": norms_every is not None and (step % norms_every == 0 or first),
            "observe": observe_every is not None and (step % observe_every == 0 or first or step == steps),
            "keep": step in settings.averaged_steps or settings.keeps(step),
            "save": step % settings.save_every == 0 or step == steps,
            "evaluate": evaluate_every is not None and step % evaluate_every == 0 and step not in (0, steps),
        }
        return {action for action, is_it in is_due.items() if is_it}

    def _note(self, text: str) -> None:
        self.listener(Note(text))

    def _is_stopped(self, *, asked: bool) -> bool:
        """Whether any process received a stop signal; all stop at the same step. Several check only if `asked`."""
        if asked or self.world.size == 1:
            self.stopped_by = self.world.largest(self.stop.number or 0)
        return bool(self.stopped_by)

    def _interrupt(self) -> NoReturn:
        step = self.counters.step
        if self.saved_step != step:
            self._save(final=False)
        said = "; everything is saved"
        if self.saved_step != step:
            said = f", but its weights are not finite; the last saved step is {self.saved_step}"
        hint = f"The same command resumes the run in {self.directory.shown}"
        raise RunInterrupted(f"stopped after step {step} of {self.settings.steps}{said}", hint, self.stopped_by)

    def _report(self, loss: float) -> None:
        device, rate = self.world.device, self.clock.rate
        memory = peak_memory_bytes(device) if device.type == "cuda" else None
        share = mfu(self.spec, self.world, rate)
        self.listener(StepReport(self.counters.step, loss, rate, share, memory, self.spec.task.unit))

    def _validate(self) -> Evaluation:
        """Evaluate the current step, and keep its weights if they are the best so far (`train.select`)."""
        evaluation, counters, task = self._evaluate(self.task.validation), self.counters, self.spec.task
        self.writer.evaluation(evaluation)
        value = evaluation.metrics.get(task.metric)
        if self.settings.select == "best" and value is not None:
            sign = 1 if task.metrics[task.metric].better == "higher" else -1
            if counters.best_value is None or sign * value > sign * counters.best_value:
                counters.best_value, counters.best_step = value, counters.step
                self.writer.weights(self.directory.best_file(counters.step))
        return evaluation

    def _evaluate(self, split: Split[Any], weights: str | None = None) -> Evaluation:
        """Evaluate the model on a split; `weights` names its weights if they are not the step's."""
        every = self.task.evaluation_batches(self._evaluation_rows, split)  # all processes have equally many

        def batches() -> Iterator[Any]:
            for number, batch in enumerate(every, start=1):
                if self._is_stopped(asked=True):
                    self._interrupt()  # a resumed run begins with this evaluation
                yield batch
                self.listener(Evaluating(number, len(every)))

        self.task.outputs = self.outputs / (weights or f"step-{self.counters.step}")
        self.listener(Evaluating(0, len(every)))
        evaluation = self.task.evaluate(batches(), split)
        return replace(evaluation, extent={"samples": every.used, **evaluation.extent})

    def _save(self, *, final: bool) -> None:
        if final:
            merge_lora(self.model, self.spec)
        if self.writer.checkpoint(None if final else self.optimizer):
            self.saved_step = self.counters.step

    def _finish(self) -> dict[str, Any]:
        """Save and evaluate the final weights; a run killed in between evaluates again."""
        counters, averaged = self.counters, self.settings.averaged_steps
        if self.saved_step != counters.step:
            return self.writer.diverged()
        if not self._ends_with_last and not counters.chosen:
            if not math.isfinite(self._validate().loss):
                return self.writer.diverged()
            files = [self.directory.weights_file(step) for step in averaged]
            if not averaged and counters.best_step is not None:
                files = [self.directory.best_file(counters.best_step)]
            if files:
                load_weights(files, self.spec, self.model)
            counters.chosen = 1
            self._save(final=True)
        evaluation = self._evaluate(self.task.validation, "final")
        if not math.isfinite(evaluation.loss):
            return self.writer.diverged()
        self.writer.evaluation(evaluation)
        result = self.writer.done(evaluation, self._evaluation_rows) | self._tested("", self.task.tests)
        if averaged and "test" in self.task.tests:  # to show the gain of averaging
            load_weights([self.directory.weights_file(counters.step)], self.spec, self.model)
            result |= self._tested("last", {"test"})
        return self.writer.result(result)

    def _tested(self, weights: str, splits: Collection[str]) -> dict[str, Any]:
        """Results on test splits; `weights` names weights other than the final ones."""
        found: dict[str, Any] = {}
        for split in splits:
            name = f"{weights}_{split}" if weights else split
            tested = self._evaluate(self.task.tests[split], weights or "final")
            self.writer.evaluation(tested, name)
            found |= tested.line(name)
            found[f"{name}_evaluation"] = {**tested.extent, **tested.signed}
        return found


# ---- finished runs, evaluated again to add missing metrics to their results


class NotAsBefore(UserError):
    """A finished run's evaluation differs from its result."""

    exit_status = 1


def evaluate_again(directory: RunDirectory, world: World) -> tuple[list[str], float]:
    """Evaluate the final weights of a run, and add the metrics that its result lacks, with date and versions. Returns
    their keys, and the largest relative deviation of the others. Raises `NotAsBefore` (nothing is added), `UserError`,
    `BeingTrained`, `StorageError`."""
    spec = directory.spec()
    with directory.lock(), tempfile.TemporaryDirectory() as outputs:
        result = directory.result_if_done()
        dataset = spec.task.prepare(spec.settings)
        training = Training(spec, directory, dataset, world, ignore, StopSignal())
        training.outputs = Path(outputs)
        # Other processors and versions round differently.
        tolerance = 1e-4 if training.settings.precision == "fp32" else 1e-3
        scores = {key for key, metric in spec.task.metrics.items() if metric.better == "higher"}
        added, differing, largest = merge(result, training.evaluations(), tolerance, scores)
        if differing:
            raise NotAsBefore(
                f"{directory.shown} evaluates to other values, so nothing is added: {'; '.join(differing)}",
                f"Trained on {result.get('device')}, processes: {result.get('processes')}, {result.get('git_commit')}.",
            )
        if added:
            when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            origin = {"comt": __version__, "git_commit": git_commit(), "torch": torch.__version__}
            again = {"when": when, "added": added, "device": device_name(world.device), **origin}
            result["evaluated_again"] = [*result.get("evaluated_again", []), again]
            write_json(directory.result_file, result)
    return added, largest


def merge(
    result: dict[str, Any], found: Mapping[str, Evaluation], tolerance: float, scores: Collection[str]
) -> tuple[list[str], list[str], float]:
    """Add to `result`, in place, the values of evaluations by split that it lacks. Returns their keys, a phrase for
    each value that deviates by more than `tolerance`, and the largest relative deviation. Metrics in `scores` count
    samples, in per cent, and may also differ by one sample, because equally probable answers can swap."""
    added, differing, largest = [], [], 0.0
    for split, each in found.items():
        begins = "" if split == "validation" else f"{split}_"
        told = result.setdefault(f"{split}_evaluation", dict(each.extent)) if begins else result
        samples = each.extent["samples"]
        if (were := result.get(f"{begins}evaluation", {}).get("samples", samples)) != samples:
            differing.append(f"{begins}samples: {were:,} before, {samples:,} now")
        known = {key: value for key, value in {"loss": finite(each.loss), **each.metrics}.items() if value is not None}
        for key, value in known.items():
            before = result.get(begins + key)
            if before is None:
                result[begins + key] = value
                added.append(begins + key)
                told.get("missing", {}).pop(key, None)
                if key in each.signatures:  # signatures of other metrics belong to their own evaluations
                    told.setdefault("signature", each.signed["signature"])
                    told.setdefault("signatures", {})[key] = each.signatures[key]
                continue
            largest = max(largest, abs(value - before) / max(abs(before), 1e-9))
            least = 100 / samples if key in scores else tolerance / 10
            pair = map(math.log, (before, value)) if key.endswith("perplexity") else (before, value)
            if not math.isclose(*pair, rel_tol=tolerance, abs_tol=least):
                differing.append(f"{begins}{key}: {before:.6g} before, {value:.6g} now")
    return added, differing, largest
