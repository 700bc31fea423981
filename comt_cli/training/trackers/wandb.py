"""Weights & Biases: a run there with this run's id, in the project that WANDB_PROJECT names, else `comt`.

WANDB_MODE=offline keeps everything in `wandb/` within the run directory; `wandb sync` uploads it later. Every start of
a run continues in the same place; steps that were logged before a kill are not logged again, and would be equal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from comt_cli.errors import UserError
from comt_cli.runs.plan import RunSpec, point_in_words
from comt_cli.training.trackers.names import names_of

PROJECT = "comt"
START_SECONDS = 60.0
"""How long a run waits for the service when it starts, and again when it ends."""


def log_in() -> None:
    """Have wandb ask for its key now, on a terminal, and not in the middle of training. Raises `UserError` where nobody
    is logged in and nobody can be asked."""
    if os.environ.get("WANDB_MODE", "online") not in ("online", "shared"):
        return
    import wandb

    try:
        wandb.login()
    except Exception as error:
        raise UserError(
            f"--track wandb: {error}", "Log in with: wandb login, or keep it all here with: WANDB_MODE=offline"
        ) from None


class WeightsAndBiases:
    """One run, begun or resumed."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=spec.id,
            resume="allow",
            name=", ".join(filter(None, (spec.row, spec.column, point_in_words(spec.point), f"seed {spec.seed}"))),
            group=f"{spec.paper}/{spec.table} {spec.scale}",
            config={"names": names_of(spec), **spec.model_dump(mode="json")},
            dir=str(folder),
            # Neither prints into the bars nor captures what is printed; a service that is down does not delay a run.
            settings=wandb.Settings(
                console="off", silent=True, init_timeout=START_SECONDS, finish_timeout=START_SECONDS
            ),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers by name."""
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """Nothing to do: wandb writes as it goes, and uploads from another process."""

    def close(self, *, ended: bool) -> None:
        """Upload what is left, within reason. A run that was stopped is shown as not finished."""
        self._run.finish(exit_code=0 if ended else 1)
