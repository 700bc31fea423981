"""Language models as the loop sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comt_cli.data.dataset import Dataset
from comt_cli.data.rows import Batch, Rows
from comt_cli.errors import UserError
from comt_cli.kernels.choice import Choice, choose_loss
from comt_cli.models.build import empty_network, materialise, wiring_of
from comt_cli.models.cost import dimensions_of
from comt_cli.models.kernels import use_kernels
from comt_cli.models.llama import Llama
from comt_cli.runs.plan import RunSpec
from comt_cli.training.devices import parameter_dtype, product_dtype
from comt_cli.training.evaluation import LanguageEvaluation, evaluate
from comt_cli.training.objective import SummedLoss
from comt_cli.training.parallel import is_sharded, shard
from comt_cli.training.task import Task
from comt_cli.training.world import World


class LanguageTask(Task[Batch]):
    """A LLaMA that predicts the next token of every row; its targets are the tokens that have one before them."""

    unit = "tokens"
    model: Llama
    validation: Rows
    objective: SummedLoss

    def __init__(self, spec: RunSpec, dataset: Dataset, world: World) -> None:
        super().__init__(spec, world, dataset.train, dataset.validation)
        self.language, self.dataset = spec.language, dataset
        self.evaluation_targets = self.language.train.evaluation_tokens

    def build(self) -> None:
        settings = self.language
        dimensions = dimensions_of(settings)
        self.model = empty_network(settings.model, wiring_of(self.spec.method), **dimensions)
        self.model.activation_checkpointing = settings.train.activation_checkpointing
        self.objective = SummedLoss(self.model, settings.train.kernels)

    def use_kernels(self) -> dict[str, Choice]:
        wanted, dtype = self.settings.kernels, product_dtype(self.settings.precision)
        return use_kernels(self.model, wanted, self.world.device, dtype, compiled=self.settings.compile)

    def loss_kernels(self) -> dict[str, Choice]:
        settings = self.settings
        return {"loss": choose_loss(settings.kernels, self.world.device, product_dtype(settings.precision))}

    def place(self) -> None:
        dtype, compiled = parameter_dtype(self.settings.precision), self.settings.compile
        if is_sharded(self.language.train, self.world):
            shard(self.objective, self.world, dtype, self.spec.seed, compiled=compiled)
            return
        materialise(self.model, self.world.device, self.spec.seed)
        self.model.to(dtype)
        if compiled:
            self.objective.compile_model()

    @property
    def sharding(self) -> str:
        train = self.language.train
        return train.sharding if is_sharded(train, self.world) else "none"

    def tensors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self._tensor(batch.tokens), self._tensor(batch.targets)

    def _tensor(self, array: np.ndarray[Any, Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.world.device.type == "cuda":
            return tensor.pin_memory().to(self.world.device, non_blocking=True)
        return tensor.to(self.world.device)

    def evaluate(self, batches: Iterable[Batch]) -> LanguageEvaluation:
        pairs = ((torch.from_numpy(batch.tokens), torch.from_numpy(batch.targets)) for batch in batches)
        return evaluate(self.objective, pairs, self.settings.precision, self.world, self.validation.tokens_per_byte)

    def checkpoint_parts(self) -> dict[str, Any]:
        return {
            "vocabulary": self.language.data.vocabulary_size,
            "tokenizer": self.dataset.tokenizer.to_json(),
        }

    def stale_plan(self) -> UserError:
        return UserError(
            f"{self.language.data.corpus} is not the text any more that this run was planned with",
            "It was changed, or files came or went. The same command plans runs of the text as it is now.",
        )
