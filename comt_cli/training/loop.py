"""The loop: one run from its first step, or from where it was stopped, to its result."""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comt_cli.data import Batch, Dataset, EvaluationBatches, TrainBatches
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.files import write_json
from comt_cli.models.accounting import cost_of, total_flops
from comt_cli.models.build import materialise, model_of
from comt_cli.models.checkpoint_file import read_state
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.run_directory import RunDirectory
from comt_cli.training.checkpoint import restore_random_states, save_checkpoint
from comt_cli.training.devices import peak_flops, peak_memory_bytes, prepare_process, synchronise
from comt_cli.training.distribution import World, distribute, share_of_batch, without_sync
from comt_cli.training.evaluation import Evaluation, evaluate
from comt_cli.training.objective import SummedLoss
from comt_cli.training.optimisation import learning_rate, make_optimizer, set_learning_rate
from comt_cli.training.precision import compute_context, parameter_dtype
from comt_cli.training.progress import Listener, StepReport
from comt_cli.training.record import LineLog, record_environment, write_metrics_table
from comt_cli.training.signals import StopSignal


@dataclass
class Counters:
    """Where a run stands; saved with every checkpoint. Seconds are of steps only, over all starts of the run."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    waiting_seconds: float = 0.0
    metrics_bytes: int = 0
    timings_bytes: int = 0
    last_finite_loss: float | None = None


@dataclass
class _Pending:
    """Losses of steps whose finiteness has not been looked at yet, since looking waits for the device; and the tokens
    seen up to each."""

    losses: list[Tensor] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    first_step: int = 0


class Training:
    """One run in one process of a `World`. `run` trains it to its end and returns `result.json`'s content."""

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
        self.counters = Counters()

    def run(self) -> dict[str, Any]:
        """Train, or go on training, until the last step, a stop signal, or a loss that is not finite.

        Raises:
            RunInterrupted: a signal came; the state is saved.
            UserError: the run is being trained by another process, or its checkpoint is another run's.
            StorageError: something could not be written; the last checkpoint is intact.
        """
        lock = self.directory.lock() if self.world.is_main else contextlib.nullcontext()
        if self.world.is_main:
            self.directory.create(self.spec)
        with lock, contextlib.ExitStack() as files:
            self._set_up(files)
            return self._train()

    def _set_up(self, files: contextlib.ExitStack) -> None:
        prepare_process(self.world.device)
        torch.manual_seed(self.spec.seed)
        model = model_of(self.spec)
        materialise(model, self.world.device, self.spec.seed)
        model.to(parameter_dtype(self.settings.precision))
        model.activation_checkpointing = self.settings.activation_checkpointing
        self.model = model
        self.optimizer = make_optimizer(model, self.settings)
        self.local_rows = share_of_batch(self.settings.batch_size, self.world)
        self.environment: dict[str, Any] = {}
        if self.world.is_main:
            for leftover in self.directory.path.glob(".*.tmp"):  # of a process that was killed while saving
                leftover.unlink(missing_ok=True)
            self.environment = record_environment(self.directory, self.world)
        names = (self.directory.metrics_file, self.directory.timings_file)
        self.metrics, self.timings = (
            files.enter_context(LineLog(name if self.world.is_main else Path(os.devnull))) for name in names
        )
        self.world.barrier()
        if self.directory.checkpoint_file.exists():
            self._resume()
        if self.world.is_main:
            self.metrics.cut(self.counters.metrics_bytes)
            self.timings.cut(self.counters.timings_bytes)
        module = SummedLoss(model)
        if self.settings.compile:
            module.compile_model()
        self.loss_module = module
        self.module = distribute(module, self.world)

    def _resume(self) -> None:
        state = read_state(self.directory.checkpoint_file, self.world.device, mapped=False)
        if state.get("id") != self.spec.id:
            raise UserError(
                f"{self.directory.checkpoint_file} belongs to run {state.get('id')}, not {self.spec.id}",
                "Move it out of the run directory.",
            )
        if state["data"] != self.dataset.content_hash:
            raise UserError(
                f"{self.directory.checkpoint_file} was trained on other tokens than those prepared here",
                "The same text can give another vocabulary under another version of sentencepiece. "
                "Train anew with --fresh.",
            )
        self.model.load_state_dict(state["model"])
        if state["optimizer"] is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        restore_random_states(state["random"])
        self.counters = Counters(**state["progress"])

    def _train(self) -> dict[str, Any]:
        settings = self.settings
        pending = _Pending(first_step=self.counters.step)
        self.listener.run_started(self.spec, self.counters.step)
        with self._batches() as batches:
            mark = _Mark(time.perf_counter(), self.counters.step, batches.waited_seconds)
            for micro_batches in batches:
                loss, norm = self._step(micro_batches, batches.target_tokens(self.counters.step))
                pending.losses.append(loss)
                pending.tokens.append(self.counters.tokens)
                step = self.counters.step
                is_last = step == settings.steps
                is_logged = step % settings.log_every == 0 or is_last or step == 1
                is_saved = step % settings.save_every == 0
                is_evaluated = settings.evaluate_every is not None and step % settings.evaluate_every == 0
                stopped = self._stopped()
                if is_logged or is_saved or is_last or stopped or is_evaluated:
                    diverged = self._look(pending)
                    mark = self._clock(mark, batches.waited_seconds)
                    if diverged:
                        return self._diverged()
                if is_logged:
                    self._log(float(loss), norm, mark)
                if is_evaluated and not is_last:
                    self._log_evaluation(self._evaluate())
                    mark = _Mark(time.perf_counter(), step, batches.waited_seconds)
                if is_saved or stopped:
                    self._save(final=False)
                    mark = _Mark(time.perf_counter(), step, batches.waited_seconds)
                if stopped and not is_last:
                    raise RunInterrupted(
                        f"stopped after step {step} of {settings.steps}; everything is saved in {self.directory.path}",
                        "The same command goes on from there.",
                        self.stop.number or 15,
                    )
        return self._finish()

    def _step(self, micro_batches: list[Batch], total: int) -> tuple[Tensor, Tensor | None]:
        """One update from this process's part of the global batch, which has `total` targets over all processes.

        Returns the token-weighted mean loss, on the device, and the gradient norm if this step needs it.
        """
        settings, world = self.settings, self.world
        loss_sum = torch.zeros((), device=world.device)
        for index, batch in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            with without_sync(self.module, active=not is_last):
                with compute_context(settings.precision, world.device):
                    loss = self.module(self._tensor(batch.tokens), self._tensor(batch.targets))
                # Gradients are averaged over processes: times their number, the sum over all tokens is left.
                (loss * (world.size / max(1, total))).backward()
            loss_sum += loss.detach()
        will_log = (self.counters.step + 1) % settings.log_every == 0 or self.counters.step + 1 in (1, settings.steps)
        norm = None
        if settings.gradient_clipping > 0:
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.gradient_clipping)
        elif will_log:
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        set_learning_rate(self.optimizer, learning_rate(settings, self.counters.step, self.model.shape.width))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.counters.step += 1
        self.counters.tokens += total
        return world.sum(loss_sum) / max(1, total), norm

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.world.device.type == "cuda":
            return tensor.pin_memory().to(self.world.device, non_blocking=True)
        return tensor.to(self.world.device)

    def _stopped(self) -> bool:
        """Whether any process was asked to stop: all must leave at the same step."""
        asked = self.stop.number is not None
        if self.world.size == 1:
            return asked
        return bool(self.world.sum(torch.tensor(int(asked), device=self.world.device)))

    def _look(self, pending: _Pending) -> bool:
        """Whether a loss is not finite; waits for the device. If so, the counters go back to the first such step: the
        result must not depend on when it was looked for."""
        losses = torch.stack(pending.losses).tolist() if pending.losses else []
        for offset, loss in enumerate(losses):
            if not math.isfinite(loss):
                self.counters.step = pending.first_step + offset + 1
                self.counters.tokens = pending.tokens[offset]
                return True
            self.counters.last_finite_loss = loss
        pending.losses.clear()
        pending.tokens.clear()
        pending.first_step = self.counters.step
        return False

    def _clock(self, mark: _Mark, waited: float) -> _Mark:
        """Add the time since `mark` to the run's, and start anew."""
        synchronise(self.world.device)
        now = time.perf_counter()
        steps = self.counters.step - mark.step
        self.counters.seconds += now - mark.time
        self.counters.waiting_seconds += waited - mark.waited
        rate = steps * self._positions_per_step() / max(now - mark.time, 1e-9)
        return _Mark(now, self.counters.step, waited, rate, (waited - mark.waited) / max(now - mark.time, 1e-9))

    def _positions_per_step(self) -> int:
        return self.settings.batch_size * self.spec.settings.data.sequence_length

    def _log(self, loss: float, norm: Tensor | None, mark: _Mark) -> None:
        counters = self.counters
        rate = learning_rate(self.settings, counters.step - 1, self.model.shape.width)
        gradient_norm = float(norm) if norm is not None and math.isfinite(float(norm)) else None
        if self.world.is_main:
            self.metrics.append(
                {
                    "step": counters.step,
                    "tokens": counters.tokens,
                    "loss": loss,
                    "learning_rate": rate,
                    "gradient_norm": gradient_norm,
                }
            )
            self.timings.append(
                {
                    "step": counters.step,
                    "seconds": round(counters.seconds, 4),
                    "tokens_per_second": round(mark.rate, 1),
                    "waiting_share": round(mark.waiting_share, 5),
                }
            )
        self.listener.step_done(
            StepReport(
                step=counters.step,
                loss=loss,
                tokens_per_second=mark.rate,
                mfu=self._mfu(mark.rate),
                memory_bytes=peak_memory_bytes(self.world.device) if self.world.device.type == "cuda" else None,
            )
        )

    def _mfu(self, positions_per_second: float) -> float | None:
        """Model FLOP/s over the device's peak, None where the peak is not known."""
        peak = peak_flops(self.world.device, self.settings.precision)
        if peak is None:
            return None
        per_position = cost_of(self.spec).flops_per_row / self.spec.settings.data.sequence_length
        return positions_per_second * per_position / (peak * self.world.size)

    def _evaluate(self) -> Evaluation:
        batches = EvaluationBatches(
            self.dataset.validation,
            batch_size=self._evaluation_rows() * self.world.size,
            rank=self.world.rank,
            world_size=self.world.size,
            max_tokens=self.settings.evaluation_tokens,
        )
        pairs = ((torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)) for batch in batches)
        self.listener.evaluating()
        return evaluate(self.loss_module, pairs, self.settings.precision, self.world)

    def _evaluation_rows(self) -> int:
        return self.settings.evaluation_batch_size or self._rows_at_once()

    def _log_evaluation(self, evaluation: Evaluation) -> None:
        if self.world.is_main and math.isfinite(evaluation.loss):
            self.metrics.append(
                {
                    "step": self.counters.step,
                    "validation_loss": evaluation.loss,
                    "validation_perplexity": _finite(evaluation.perplexity),
                    "validation_galore_perplexity": _finite(evaluation.galore_perplexity),
                }
            )

    def _save(self, *, final: bool) -> None:
        # A gradient can overflow where the loss did not yet. The next step says so; no such weights replace good ones.
        if self.world.is_main and self._weights_are_finite():
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

    def _weights_are_finite(self) -> bool:
        finite = [torch.isfinite(parameter).all() for parameter in self.model.parameters()]
        return bool(torch.stack(finite).all())

    def _finish(self) -> dict[str, Any]:
        evaluation = self._evaluate()
        if not math.isfinite(evaluation.loss):
            return self._diverged()
        # The final state is saved before its evaluation is written down: a run killed in between evaluates again.
        self._save(final=True)
        self._log_evaluation(evaluation)
        result = {
            "state": "done",
            **self._common_result(),
            "loss": evaluation.loss,
            "perplexity": _finite(evaluation.perplexity),
            "galore_perplexity": _finite(evaluation.galore_perplexity),
            "evaluation": {
                "tokens": evaluation.tokens,
                "batches": evaluation.batches,
                "batch_size": self._evaluation_rows(),
                "processes": self.world.size,
            },
        }
        return self._write_result(result)

    def _diverged(self) -> dict[str, Any]:
        common = self._common_result()
        return self._write_result({"state": "diverged", **common, "diverged_at": self.counters.step})

    def _common_result(self) -> dict[str, Any]:
        cost, counters = cost_of(self.spec), self.counters
        positions = counters.step * self._positions_per_step()
        rate = positions / max(counters.seconds, 1e-9)
        return {
            "id": self.spec.id,
            "step": counters.step,
            "steps": self.settings.steps,
            "tokens": counters.tokens,
            "train_loss": counters.last_finite_loss,
            "last_finite_loss": counters.last_finite_loss,
            "parameters": cost.parameters,
            "extra_parameters": cost.extra_parameters,
            "extra_parameters_percent": cost.extra_parameters_percent,
            "flops": total_flops(self.spec),
            "train_seconds": round(counters.seconds, 3),
            "tokens_per_second": round(rate, 1),
            "mfu": self._mfu(rate),
            "peak_memory_bytes": peak_memory_bytes(self.world.device),
            "waiting_share": round(counters.waiting_seconds / max(counters.seconds, 1e-9), 5),
            "device": self.environment.get("device"),
            "processes": self.world.size,
            "git_commit": self.environment.get("git_commit"),
        }

    def _write_result(self, result: dict[str, Any]) -> dict[str, Any]:
        if self.world.is_main:
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


@dataclass(frozen=True)
class _Mark:
    """A moment on the clock, the step it came after, and the speed up to it."""

    time: float
    step: int
    waited: float
    rate: float = 0.0
    waiting_share: float = 0.0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
