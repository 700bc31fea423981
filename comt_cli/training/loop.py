"""The loop: one run from its first step, or from where it was stopped, to its result."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from comt_cli.data import Dataset, EvaluationBatches, TrainBatches
from comt_cli.errors import RunInterrupted
from comt_cli.files import write_json
from comt_cli.models.build import materialise, model_of
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.run_directory import RunDirectory
from comt_cli.training.checkpoint import save_checkpoint
from comt_cli.training.clock import Clock, mfu, positions_per_step
from comt_cli.training.counters import Counters, UnseenLosses
from comt_cli.training.devices import peak_memory_bytes, prepare_process
from comt_cli.training.distribution import World, distribute, share_of_batch
from comt_cli.training.evaluation import Evaluation, evaluate
from comt_cli.training.objective import SummedLoss
from comt_cli.training.optimisation import make_optimizer
from comt_cli.training.precision import parameter_dtype
from comt_cli.training.progress import Listener, StepReport
from comt_cli.training.record import LineLog, record_environment, write_metrics_table
from comt_cli.training.result import diverged_result, done_result, evaluation_line, finite
from comt_cli.training.resume import resume
from comt_cli.training.signals import StopSignal
from comt_cli.training.update import Updater

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
        self.environment: dict[str, Any] = {}
        self.began = False

    def run(self) -> dict[str, Any]:
        """Train, or go on training, until the last step, a stop signal, or a loss that is not finite.

        Raises:
            RunInterrupted: a signal came; the state is saved.
            UserError: the run is being trained by another process, or its checkpoint is another run's.
            StorageError: something could not be written; the last checkpoint is intact.
        """
        with contextlib.ExitStack() as held:
            if self.world.is_main:
                held.enter_context(self.directory.lock())
            # Another process may have finished the run since the table was looked through.
            finished = self.world.broadcast(self.directory.result() if self.world.is_main else None)
            if isinstance(finished, dict):
                self.listener.run_finished(self.spec, finished)
                return finished
            if self.world.is_main:
                self.directory.create(self.spec)
            self._set_up(held)
            return self._train()

    def _set_up(self, held: contextlib.ExitStack) -> None:
        prepare_process(self.world.device)
        torch.manual_seed(self.spec.seed)
        self.model = model_of(self.spec)
        materialise(self.model, self.world.device, self.spec.seed)
        self.model.to(parameter_dtype(self.settings.precision))
        self.model.activation_checkpointing = self.settings.activation_checkpointing
        self.optimizer = make_optimizer(self.model, self.settings)
        checkpoint = self.directory.checkpoint_file
        self.counters = resume(checkpoint, self.spec, self.dataset, self.world, self.model, self.optimizer)
        self.saved_step = self.counters.step
        names = (self.directory.metrics_file, self.directory.timings_file)
        self.metrics, self.timings = (
            held.enter_context(LineLog(name if self.world.is_main else Path(os.devnull))) for name in names
        )
        if self.world.is_main:
            self.metrics.cut(self.counters.metrics_bytes)
            self.timings.cut(self.counters.timings_bytes)
            for leftover in self.directory.path.glob(".*.tmp"):  # of a process that was killed while saving
                leftover.unlink(missing_ok=True)
            self.environment = record_environment(self.directory, self.world, self.counters.step)
        self.clock = Clock(self.world.device, self.counters, positions_per_step(self.spec))
        self.loss_module = SummedLoss(self.model)
        if self.settings.compile:
            self.loss_module.compile_model()
        module = distribute(self.loss_module, self.world)
        width = self.model.shape.width
        self.updater = Updater(self.settings, self.world, self.model, width, module, self.optimizer)

    def _train(self) -> dict[str, Any]:
        settings, counters = self.settings, self.counters
        self.listener.run_started(self.spec, counters.step)
        if changed := self.environment.get("differs"):
            self.listener.warn(
                f"this run was begun with another {', '.join(changed)}: it will not end, to the bit, as one never stopped"
            )
        self.began = True
        if settings.compile or self.world.size > 1:
            rows = self._rows_at_once()
            self.updater.warm_up(self.dataset.train, sorted({rows, self.local_rows % rows} - {0}))
        unseen = UnseenLosses(counters.step)
        if counters.step and self._is_evaluated():  # a step is saved before it is evaluated
            self._log_evaluation(self._evaluate())
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
                    self._log_evaluation(self._evaluate())
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
            message = f"{where}; everything is saved in {self.directory.path}"
        else:
            kept = f"the checkpoint of step {self.saved_step} stays" if self.saved_step else "nothing was saved before"
            message = f"{where}, whose weights are not finite and were not saved; {kept} in {self.directory.path}"
        raise RunInterrupted(message, "The same command goes on from there.", self.stop.number or 15)

    def _log(self, loss: float, norm: Tensor | None) -> None:
        counters, clock = self.counters, self.clock
        if self.world.is_main:
            self.metrics.append(
                {
                    "step": counters.step,
                    "tokens": counters.tokens,
                    "loss": loss,
                    "learning_rate": self.updater.learning_rate(counters.step - 1),
                    "gradient_norm": None if norm is None else finite(float(norm)),
                }
            )
            self.timings.append(
                {
                    "step": counters.step,
                    "seconds": round(counters.seconds, 4),
                    "tokens_per_second": round(clock.rate, 1),
                    "waiting_share": round(clock.waiting_share, 5),
                }
            )
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

    def _log_evaluation(self, evaluation: Evaluation) -> None:
        if self.world.is_main:
            self.metrics.append(evaluation_line(self.counters.step, evaluation))

    def _save(self, *, final: bool) -> None:
        # A gradient can overflow where the loss did not yet. The next step says so; no such weights replace good ones.
        if not self.world.broadcast(self._weights_are_finite()):
            return
        if self.world.is_main:
            self.counters.metrics_bytes = self.metrics.durable_length()
            self.counters.timings_bytes = self.timings.durable_length()
            save_checkpoint(
                self.directory.checkpoint_file,
                self.spec,
                self.dataset,
                self.model,
                None if final else self.optimizer,
                vars(self.counters),
            )
        self.world.barrier()
        self.saved_step = self.counters.step

    def _weights_are_finite(self) -> bool:
        finite_ones = [torch.isfinite(parameter).all() for parameter in self.model.parameters()]
        return bool(torch.stack(finite_ones).all())

    def _finish(self) -> dict[str, Any]:
        """Evaluate the last step, which is saved: a run killed in between evaluates again."""
        if self.saved_step != self.counters.step:
            return self._diverged()
        evaluation = self._evaluate()
        if not math.isfinite(evaluation.loss):
            return self._diverged()
        self._log_evaluation(evaluation)
        rows = self._evaluation_rows()
        result = done_result(self.spec, self.counters, self.world, self.environment, evaluation, rows)
        return self._write_result(result)

    def _diverged(self) -> dict[str, Any]:
        return self._write_result(diverged_result(self.spec, self.counters, self.world, self.environment))

    def _write_result(self, result: dict[str, Any]) -> dict[str, Any]:
        if self.world.is_main:
            self.metrics.durable_length()  # the result must not outlive the lines it stands for
            write_metrics_table(self.directory)
            write_json(self.directory.result_file, result)
        self.listener.run_finished(self.spec, result)
        self.world.barrier()
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
