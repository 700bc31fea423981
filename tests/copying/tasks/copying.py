"""A toy task: copying a sequence. With `runs/copying.py` it is all that a third task needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from comt_cli.data.split import IGNORE, Split
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.text.rows import Batch
from comt_cli.files import canonical_json, sha256
from comt_cli.recipe.settings import Count, RunSettings, Section
from comt_cli.tasks.base import POINTS, PROJECTIONS, Metric, Sites, Task, Unit
from comt_cli.tasks.settings.language import ModelSettings, TrainSettings

SEPARATOR = 0


class CopyData(Section):
    """Sequences of `length` symbols, of which there are `symbols`."""

    symbols: Annotated[int, Field(ge=2, le=1000)] = 6
    length: Annotated[int, Field(ge=1, le=100)] = 4
    train: Count = 256
    validation: Count = 32


class CopySettings(RunSettings):
    """Everything that decides a run of it, apart from its method and its seed."""

    model: ModelSettings
    data: CopyData
    train: TrainSettings


class Sequences(Split[Batch]):
    """Sequences, each followed by the separator and by itself; only the second one is predicted."""

    def __init__(self, data: CopyData, count: int, seed: int) -> None:
        self.symbols_NL = np.random.default_rng(seed).integers(1, data.symbols + 1, (count, data.length))

    def __len__(self) -> int:
        return len(self.symbols_NL)

    def target_counts(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(indices), self.symbols_NL.shape[1], dtype=np.int64)

    def batch(self, indices: NDArray[np.int64]) -> Batch:
        once_BL = self.symbols_NL[self._check(indices)]
        separator_B1 = np.full((len(once_BL), 1), SEPARATOR)
        whole_BT = np.concatenate([once_BL, separator_B1, once_BL], axis=1)
        targets_BT = whole_BT[:, 1:].copy()
        targets_BT[:, : once_BL.shape[1]] = IGNORE
        return Batch(whole_BT[:, :-1].copy(), targets_BT)


@dataclass(frozen=True)
class CopyDataset:
    """All three splits."""

    train: Sequences
    validation: Sequences
    test: Sequences
    content_hash: str


class Copying(Task[CopySettings]):
    """Train every run of a copying recipe.

    Examples:

      comt train-copying --recipe table3.yaml
    """

    name: ClassVar = "copying"
    command: ClassVar = "train-copying"
    unit: ClassVar = Unit("symbols", "sym")
    metrics: ClassVar[Mapping[str, Metric]] = {
        "copied": Metric("sequences copied without a mistake, in per cent", "copied, %", "copied", "higher", POINTS),
        "right": Metric("symbols copied rightly, in per cent", "right, %", "right", "higher", POINTS),
        "test_right": Metric("symbols of the test split, in per cent", "right, %", "right", "higher", POINTS),
    }
    sites: ClassVar = Sites("tokens", PROJECTIONS)
    plain_method: ClassVar = "pre-ln"
    plain: ClassVar = "the plain Pre-LN model of the same size"
    differs: ClassVar = "whose width may be another one"
    runtime_keys: ClassVar = {"train": frozenset({"save_every", "observe_every", "sharding", "kernels", "cuda_graphs"})}
    trained_on: ClassVar = "Sequences of symbols."

    @property
    def settings(self) -> type[CopySettings]:
        return CopySettings

    def identify(self, settings: CopySettings) -> tuple[str, str | None]:
        name = sha256(canonical_json(settings.data.model_dump()))[:16]
        return name, name  # nothing but the settings decides it

    def prepare(self, settings: CopySettings, progress: ProgressCallback | None = None) -> CopyDataset:
        data = settings.data
        counts = (data.train, data.validation, data.validation)
        splits = (Sequences(data, count, seed) for seed, count in enumerate(counts, start=1))
        return CopyDataset(*splits, self.identify(settings)[0])

    def data_name(self, settings: CopySettings) -> str:
        return "random symbols"

    def dimensions(self, settings: CopySettings) -> dict[str, int]:
        return {"vocabulary": settings.data.symbols + 1, "length": 2 * settings.data.length}

    def positions(self, settings: CopySettings) -> int:
        return 2 * settings.data.length

    def work(self, settings: CopySettings) -> float:
        return float(self.positions(settings) * settings.model.shape().layers)

    def network_and_data(self, settings: CopySettings, size: Sequence[str] = ()) -> str:
        return f"LLaMA {settings.model.size} on {settings.data.length} random symbols"

    def describe(self, settings: CopySettings, size: str = "", seen: str = "") -> str:
        return f"{self.network_and_data(settings)}{size}, {seen} symbols a run"

    def columns(self, settings: CopySettings) -> dict[str, Any]:
        return {"model": settings.model.size, "length": settings.data.length}
