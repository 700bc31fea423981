"""The training half of each task, in a file of the same name as in `comt_cli/tasks`. The loop handles batches, steps
and files. A `TaskRun` provides the model, its objective, the transfer of batches to the device, evaluations, and the
checkpoint's additional entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from comt_cli.data.loader import EvaluationBatches, TrainBatches
from comt_cli.data.split import B, Split
from comt_cli.kernels.attend import MOST_TOKENS, attention_form
from comt_cli.kernels.choice import Choice, choose_loss
from comt_cli.layers.dropout import Masks
from comt_cli.models.base import Model, VocabularyModel
from comt_cli.models.build import materialise, model_of, new_parts
from comt_cli.models.kernels import use_kernels
from comt_cli.models.pretrained import adapt
from comt_cli.recipe.settings import Training
from comt_cli.runs.directory import PYTORCH
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task
from comt_cli.tasks.base import TokenTask, only_class
from comt_cli.training.devices import parameter_dtype, product_dtype
from comt_cli.training.evaluation import Evaluation
from comt_cli.training.objective import Objective, SummedLoss
from comt_cli.training.parallel import World, shard
from comt_cli.training.processes import share_of_batch


def run_class(task: Task[Any]) -> type[TaskRun[Any]]:
    """The class of a task's runs: the one that its module defines."""
    return only_class(f"{__name__}.{task.name}", TaskRun)  # type: ignore[type-abstract]


def is_captured(settings: Training, world: World) -> bool:
    """Whether compiled passes are captured in CUDA graphs."""
    return bool(settings.captures) and world.device.type == "cuda" and world.size == 1


class TaskRun(ABC, Generic[B]):
    """One run's model and data for the loop. Call `build` first, then `use_kernels`, then `place`.

    Attributes:
        captured: whether compiled passes are captured in CUDA graphs.
        facts: entries of the result about its data.
        train, validation: the splits of its data; `tests`: by name those for the final weights alone.
        outputs: a folder for the outputs of evaluations per sample, from which an interrupted one resumes.
        evaluation_rows: samples per pass in evaluations; None: as in training.
        evaluation_targets: targets per evaluation; None: the whole split.
        norms_every: steps between logged gradient norms of the parameters in `observed`; None: never.
        model, objective: set by `build`.
        memory_format: the memory format of the model's tensors; None: the default.
    """

    memory_format: ClassVar[torch.memory_format | None] = None
    evaluation_rows: ClassVar[int | None] = None
    outputs: Path
    model: Model
    objective: Objective

    def __init__(self, spec: RunSpec, dataset: Any, world: World) -> None:
        self.spec, self.world = spec, world
        self.settings: Training = spec.settings.train
        self.evaluation_targets: int | None = getattr(self.settings, "evaluation_tokens", None)
        self.norms_every: int | None = getattr(self.settings, "gradient_norms_every", None)
        self.captured = is_captured(self.settings, world)
        self.train: Split[B] = dataset.train
        self.validation: Split[B] = dataset.validation
        self.facts: Mapping[str, str] = getattr(dataset, "facts", {})
        self.tests: Mapping[str, Split[B]] = {
            name: split for name in ("test", "unseen") if (split := getattr(dataset, name, None)) is not None
        }

    def build(self) -> None:
        """Make model and objective on the meta device."""
        self.model = model_of(self.spec)
        if self.spec.start is not None and self.settings.lora is not None:
            adapt(self.model, *self.settings.lora, new_parts(self.spec, self.model))
        self.model.activation_checkpointing = self.settings.recomputes
        self.objective = self.objective_of(self.model)

    @abstractmethod
    def objective_of(self, model: Any) -> Objective:
        """The training objective: a module that contains the model and takes the result of `inputs`."""

    def use_kernels(self) -> dict[str, Choice]:
        """Select the fastest implementations of the model's operations (`train.kernels`). Returns these choices, and
        that of the loss over a vocabulary."""
        where = self.settings.kernels, self.world.device, product_dtype(self.settings.precision)
        tokens = self.rows_at_once * self.spec.task.positions(self.spec.settings)
        found = use_kernels(self.model, *where, compiled=self.settings.compile, tokens=tokens, only=True)
        return found | ({"loss": choose_loss(*where)} if isinstance(self.model, VocabularyModel) else {})

    def place(self) -> None:
        """Allocate and initialise the model on the device, in its type; compile it if requested."""
        dtype, compiled = parameter_dtype(self.settings.precision), self.settings.compile
        if self.sharding == "fsdp":
            shard(self.objective, self.world, dtype, self.spec.seed, compiled=compiled)
            return
        materialise(self.model, self.world.device, self.spec.seed)
        self.model.to(dtype)
        if self.memory_format is not None:
            self.model.to(memory_format=self.memory_format)  # type: ignore[call-overload]
        if compiled:
            self.objective.compile_model(captured=self.captured)

    @property
    def rows_at_once(self) -> int:
        """Rows per pass of one process."""
        rows = share_of_batch(self.settings.batch_size, self.world.size)
        return min(self.settings.micro_batch_size or rows, rows)

    @property
    def attention(self) -> str:
        """The implementation of attention for short sequences (`kernels.attend`), or PyTorch's."""
        task = self.spec.task
        has_short = task.counts_targets or task.positions(self.spec.settings) <= MOST_TOKENS
        if not (isinstance(task, TokenTask) and has_short):
            return PYTORCH
        return attention_form(self.world.device.type, product_dtype(self.settings.precision))

    @property
    def sharding(self) -> str:
        """The sharding of the parameters; `none` if each process has all of them."""
        return "fsdp" if self.settings.shards and self.world.size > 1 else "none"

    def caution(self, local_rows: int) -> str | None:
        """A note printed when the run starts, given the rows per process; None if there is none."""
        return self.facts.get("data_note")

    def observed(self) -> dict[str, nn.Parameter]:
        """The parameters whose gradient norms are logged, by name."""
        return {}

    @abstractmethod
    def inputs(self, batch: B) -> tuple[Tensor, ...]:
        """Arguments of the objective for a training batch, on the device; the last one are the targets."""

    def read(self, inputs: Sequence[Tensor]) -> Tensor | None:
        """Whether each position of `inputs` is a token, bool [B, T]; None: unless it has the id `PAD`."""
        return None

    @abstractmethod
    def evaluate(self, batches: Iterable[B], split: Split[B]) -> Evaluation:
        """Evaluate the model on this process's batches of a split, jointly with all other processes."""

    @abstractmethod
    def checkpoint_parts(self) -> dict[str, Any]:
        """Checkpoint entries besides the training state, so that the model can be used without its data set."""

    def train_batches(self, rows_at_once: int, first_step: int) -> TrainBatches[B]:
        """This process's part of the global batches of the steps from `first_step` on, in micro-batches."""
        sizes = {"batch_size": self.settings.batch_size, "micro_batch_size": rows_at_once}
        place = {"rank": self.world.rank, "world_size": self.world.size}
        steps = {"first_step": first_step, "last_step": self.settings.steps}
        return TrainBatches(self.train, seed=self.spec.seed, **sizes, **place, **steps)

    def trial_batch(self, size: int) -> B:
        """`size` training samples for a pass whose result is not used."""
        return self.train.train_batch(np.arange(size, dtype=np.int64) % len(self.train), self.spec.seed, 0)

    def evaluation_batches(self, rows_at_once: int, split: Split[B]) -> EvaluationBatches[B]:
        """This process's part of a split, `rows_at_once` at a time; all processes have equally many batches."""
        world, most = self.world, self.evaluation_targets if split is self.validation else None
        place = {"batch_size": rows_at_once * world.size, "rank": world.rank, "world_size": world.size}
        is_equal = self.settings.compile and world.device.type == "cuda"
        return EvaluationBatches(split, **place, max_targets=most, equal=is_equal)


class TextRun(TaskRun[B]):
    """A network that reads texts. Batches have `positions`, for dropout masks; its data set has a tokenizer."""

    def __init__(self, spec: RunSpec, dataset: Any, world: World) -> None:
        super().__init__(spec, dataset, world)
        self.dataset: Any = dataset

    def build(self) -> None:
        super().build()
        self.masks = Masks(self.model)

    def objective_of(self, model: Any) -> Objective:
        return SummedLoss(model, self.settings.kernels)

    @abstractmethod
    def arrays(self, batch: B) -> tuple[NDArray[Any], ...]:
        """The network's inputs of a batch, and its targets."""

    def inputs(self, batch: B) -> tuple[Tensor, ...]:
        """The batch on the device; also sets the dropout masks of its positions."""
        self.masks.move_to(self.spec.seed, batch.positions, self.world.device)  # type: ignore[attr-defined]
        return self.tensors(batch)

    def tensors(self, batch: B) -> tuple[Tensor, ...]:
        """`arrays` on the device."""
        device = self.world.device
        tensors = (torch.from_numpy(array) for array in self.arrays(batch))
        if device.type == "cuda":
            return tuple(tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors)
        return tuple(tensor.to(device) for tensor in tensors)

    def checkpoint_parts(self) -> dict[str, Any]:
        return {"vocabulary": self.dataset.vocabulary_size, "tokenizer": self.dataset.tokenizer.to_json()}
