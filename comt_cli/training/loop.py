"""The loop: one run from its first step, or from where it was stopped, to its result."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from comt_cli.data import Dataset, EvaluationBatches, TrainBatches
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.kernels.choice import Choice
from comt_cli.models.build import materialise, model_of
from comt_cli.models.kernels import use_kernels
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.run_directory import BeingTrained, RunDirectory
from comt_cli.training.clock import Clock, mfu, positions_per_step
from comt_cli.training.counters import Counters, UnseenLosses
from comt_cli.training.devices import peak_memory_bytes, prepare_process
from comt_cli.training.distribution import distribute
from comt_cli.training.evaluation import Evaluation, evaluate
from comt_cli.training.objective import SummedLoss
from comt_cli.training.optimisation import make_optimizer
from comt_cli.training.precision import parameter_dtype, product_dtype
from comt_cli.training.progress import Listener, StepReport
from comt_cli.training.result import diverged_result, done_result
from comt_cli.training.resume import resume
from comt_cli.training.sharding import is_sharded, shard
from comt_cli.training.signals import StopSignal
from comt_cli.training.update import Updater
from comt_cli.training.world import World, share_of_batch
from comt_cli.training.writer import RunWriter

ASK_EVERY = 8
"""Steps after which several processes ask each other whether one was told to stop (as well as where something is
logged or saved): asking waits for the device. A process that is alone looks after every step."""


class Training:
    """One run in one process of a `World`. `run` trains it to its end and returns `result.json`'s content.

    Attributes:
        began: whether `run` came as far as training.
    """

    def __init__(
        self,
        spec: RunSpec,
        directory: RunDirectory,
        dataset: Dataset,
        world: World,
        listener: Listener,
        stop: StopSignal,
    ) -> None:
        self.spec, self.directory, self.dataset = spec, directory, dataset
        self.world, self.listener, self.stop = world, listener, stop
        self.settings = spec.settings.train
        self.local_rows = share_of_batch(self.settings.batch_size, world)
        self.counters = Counters()
        self.saved_step = 0
        self.began = False

    def run(self) -> dict[str, Any]:
        """Train, or go on training, until the last step, a stop signal, or a loss that is not finite.

        Raises:
            RunInterrupted: a signal came; the state is saved.
            BeingTrained: another process is training the run; said in all processes of this one's world.
            UserError: its checkpoint is another run's, or the data is not what it was planned with.
            StorageError: something could not be written; the last checkpoint is intact.
        """
        with contextlib.ExitStack() as held:
            # Another process may have finished the run since the table was looked through.
            finished = self.world.broadcast(self._take(held) if self.world.is_main else None)
            if isinstance(finished, BeingTrained):
                raise finished
            if isinstance(finished, dict):
                self.listener.run_finished(self.spec, finished)
                return finished
            if self.world.is_main:
                self.directory.create(self.spec)
            if self.dataset.fingerprint != self.spec.data_fingerprint:
                raise UserError(
                    f"{self.spec.settings.data.corpus} is not the text any more that this run was planned with",
                    "It was changed, or files came or went. The same command plans runs of the text as it is now.",
                )
            self._set_up(held)
            return self._train()

    def _take(self, held: contextlib.ExitStack) -> dict[str, Any] | BeingTrained | None:
        """The run's lock, or what forbids it; then its result, if there is one."""
        try:
            held.enter_context(self.directory.lock())
        except BeingTrained as refused:
            return refused
        return self.directory.result()

    def _set_up(self, held: contextlib.ExitStack) -> None:
        prepare_process(self.world.device)
        torch.manual_seed(self.spec.seed)
        self.model = model_of(self.spec)
        self.model.activation_checkpointing = self.settings.activation_checkpointing
        self.loss_module = SummedLoss(self.model, self.settings.kernels)
        dtype, compiled = parameter_dtype(self.settings.precision), self.settings.compile
        kernels = self._use_kernels()
        if is_sharded(self.settings, self.world):
            shard(self.loss_module, self.world, dtype, self.spec.seed, compiled=compiled)
        else:
            materialise(self.model, self.world.device, self.spec.seed)
            self.model.to(dtype)
            if compiled:
                self.loss_module.compile_model()
        self.optimizer = make_optimizer(self.model, self.settings)
        checkpoint = self.directory.checkpoint_file
        self.counters = resume(checkpoint, self.spec, self.dataset, self.world, self.model, self.optimizer)
        self.saved_step = self.counters.step
        warn = self.listener.warn
        self.writer = RunWriter(self.spec, self.directory, self.dataset, self.world, self.counters, held, warn, kernels)
        self.clock = Clock(self.world.device, self.counters, positions_per_step(self.spec))
        module = distribute(self.loss_module, self.world)
        self.updater = Updater(self.settings, self.world, self.model, module, self.optimizer)

    def _use_kernels(self) -> dict[str, Choice]:
        """Switch the model's operations to what is fastest here (`train.kernels`), and say what that is."""
        wanted, dtype = self.settings.kernels, product_dtype(self.settings.precision)
        choices = use_kernels(self.model, wanted, self.world.device, dtype, compiled=self.settings.compile)
        if wanted == "fused":
            missing: dict[str, list[str]] = {}
            for op, choice in choices.items():
                if not choice.fused:
                    missing.setdefault(choice.reason, []).append(op)
            for reason, ops in missing.items():
                self.listener.warn(f"train.kernels: fused, but {', '.join(ops)} cannot be: {reason}")
        return choices

    def _train(self) -> dict[str, Any]:
        settings, counters = self.settings, self.counters
        self.listener.run_started(self.spec, counters.step)
        if changed := self.writer.environment.get("differs"):
            self.listener.warn(
                f"this run was begun with another {', '.join(changed)}: it will not end to the bit as one never stopped"
            )
        self.began = True
        if settings.compile or self.world.size > 1:
            rows = self._rows_at_once()
            self.updater.warm_up(self.dataset.train, sorted({rows, self.local_rows % rows} - {0}))
        unseen = UnseenLosses(counters.step)
        if counters.step and self._is_evaluated():  # a step is saved before it is evaluated
            self.writer.evaluation(self._evaluate())
        with self._batches() as batches:
            self.clock.start(batches.waited_seconds)
            for micro_batches in batches:
                total = batches.target_tokens(counters.step)
                wants_norm = self._is_logged(counters.step + 1)
                loss, norm = self.updater.step(micro_batches, total, counters.step, wants_norm=wants_norm)
                counters.step += 1
                counters.tokens += total
                unseen.add(loss, counters.tokens)
                is_last = counters.step == settings.steps
                is_logged, is_evaluated = self._is_logged(counters.step), self._is_evaluated()
                is_saved = counters.step % settings.save_every == 0 or is_last
                stops = self._is_stopped(asked=is_logged or is_saved or counters.step % ASK_EVERY == 0) and not is_last
                if is_logged or is_saved or is_evaluated or stops:
                    self.clock.lap(batches.waited_seconds)
                    if not unseen.all_finite(counters):
                        return self._diverged()
                if is_logged:
                    self._log(float(loss), norm)
                if stops:
                    self._interrupt()
                if is_saved:
                    self._save(final=is_last)
                if is_evaluated:
                    self.writer.evaluation(self._evaluate())
                if is_saved or is_evaluated:
                    self.clock.start(batches.waited_seconds)
        return self._finish()

    def _is_logged(self, step: int) -> bool:
        return step % self.settings.log_every == 0 or step in (1, self.settings.steps)

    def _is_evaluated(self) -> bool:
        """Whether an evaluation is due after the step at hand; the last one is `_finish`'s."""
        every, step = self.settings.evaluate_every, self.counters.step
        return every is not None and step % every == 0 and step != self.settings.steps

    def _is_stopped(self, *, asked: bool) -> bool:
        """Whether any process was told to stop: all must leave at the same step. Several look only where `asked`."""
        told = self.stop.number is not None
        if self.world.size == 1:
            return told
        return asked and bool(self.world.sum(torch.tensor(int(told), device=self.world.device)))

    def _interrupt(self) -> NoReturn:
        """End the run as it was told to, after saving the step at hand."""
        step = self.counters.step
        if self.saved_step != step:
            self._save(final=False)
        where = f"stopped after step {step} of {self.settings.steps}"
        if self.saved_step == step:
            message = f"{where}; everything is saved in {self.directory.shown}"
        else:
            kept = f"the checkpoint of step {self.saved_step} stays" if self.saved_step else "nothing was saved before"
            message = f"{where}, whose weights are not finite and were not saved; {kept} in {self.directory.shown}"
        raise RunInterrupted(message, "The same command goes on from there.", self.stop.number or 15)

    def _log(self, loss: float, norm: Tensor | None) -> None:
        counters, clock = self.counters, self.clock
        self.writer.step(loss, self.updater.learning_rate(counters.step - 1), norm, clock)
        self.listener.step_done(
            StepReport(
                step=counters.step,
                loss=loss,
                tokens_per_second=clock.rate,
                mfu=mfu(self.spec, self.world, clock.rate),
                memory_bytes=peak_memory_bytes(self.world.device) if self.world.device.type == "cuda" else None,
            )
        )

    def _evaluate(self) -> Evaluation:
        batches = EvaluationBatches(
            self.dataset.validation,
            batch_size=self._evaluation_rows() * self.world.size,
            rank=self.world.rank,
            world_size=self.world.size,
            max_tokens=self.settings.evaluation_tokens,
        )

        def pairs() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in batches:  # as many for every process
                if self._is_stopped(asked=True):
                    self._interrupt()  # going on begins with this evaluation
                yield torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)

        self.listener.evaluating()
        return evaluate(self.loss_module, pairs(), self.settings.precision, self.world)

    def _save(self, *, final: bool) -> None:
        if self.writer.checkpoint(self.model, None if final else self.optimizer):
            self.saved_step = self.counters.step

    def _finish(self) -> dict[str, Any]:
        """Evaluate the last step, which is saved: a run killed in between evaluates again."""
        if self.saved_step != self.counters.step:
            return self._diverged()
        evaluation = self._evaluate()
        if not math.isfinite(evaluation.loss):
            return self._diverged()
        self.writer.evaluation(evaluation)
        rows = self._evaluation_rows()
        result = done_result(self.spec, self.counters, self.world, self.writer.environment, evaluation, rows)
        return self._end(result)

    def _diverged(self) -> dict[str, Any]:
        return self._end(diverged_result(self.spec, self.counters, self.world, self.writer.environment))

    def _end(self, result: dict[str, Any]) -> dict[str, Any]:
        self.writer.result(result)
        self.listener.run_finished(self.spec, result)
        return result

    def _batches(self) -> TrainBatches:
        return TrainBatches(
            self.dataset.train,
            seed=self.spec.seed,
            batch_size=self.settings.batch_size,
            micro_batch_size=self._rows_at_once(),
            rank=self.world.rank,
            world_size=self.world.size,
            first_step=self.counters.step,
            last_step=self.settings.steps,
        )

    def _rows_at_once(self) -> int:
        """Rows that one process puts through the model together."""
        return min(self.settings.micro_batch_size or self.local_rows, self.local_rows)

    def _evaluation_rows(self) -> int:
        return self.settings.evaluation_batch_size or self._rows_at_once()
