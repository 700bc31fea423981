"""What runs over texts have in common: dropout's masks, batches as tensors, and a checkpoint's tokenizer."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from comt_cli.data.split import B
from comt_cli.data.tokenizer import Tokenizer
from comt_cli.layers.dropout import Masks
from comt_cli.runs.plan import RunSpec
from comt_cli.training.parallel import World
from comt_cli.training.tasks.base import TaskRun


class TextDataset(Protocol):
    """A data set of texts."""

    tokenizer: Tokenizer
    vocabulary_size: int


class TextRun(TaskRun[B]):
    """A network that reads texts. Its batches have `positions`, which dropout follows."""

    dataset: TextDataset

    def __init__(self, spec: RunSpec, dataset: Any, world: World) -> None:
        super().__init__(spec, dataset, world)
        self.dataset = dataset

    def build(self) -> None:
        super().build()
        self.masks = Masks(self.model)

    @abstractmethod
    def arrays(self, batch: B) -> tuple[NDArray[Any], ...]:
        """What the network reads of a batch, and its targets."""

    def inputs(self, batch: B) -> tuple[Tensor, ...]:
        """The batch on the device; dropout moves to its positions."""
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
