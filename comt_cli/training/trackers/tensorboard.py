"""TensorBoard: event files in `tensorboard/` within the run directory. `tensorboard --logdir runs` shows them all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from comt_cli.runs.plan import RunSpec
from comt_cli.training.trackers.names import names_of

FOLDER = "tensorboard"


class TensorBoard:
    """The events of one start of a run, after `step`. Readers drop what an earlier start logged beyond that."""

    def __init__(self, spec: RunSpec, folder: Path, step: int) -> None:
        purged = step + 1 if step else 0
        self._writer = SummaryWriter(str(folder / FOLDER), purge_step=purged)
        if not step:
            self._text("names", names_of(spec))
            self._text("config", spec.model_dump(mode="json"))

    def _text(self, tag: str, value: object) -> None:
        text = json.dumps(value, indent=2).replace("\n", "\n    ")
        self._writer.add_text(tag, f"    {text}", 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars by name."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Onto the disk; by itself the writer does so every two minutes."""
        self._writer.flush()

    def close(self, *, ended: bool) -> None:
        """Write what is left."""
        self._writer.close()
