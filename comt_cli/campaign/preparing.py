"""The data sets of a list of runs, made ready before the first of them starts. Torch-free."""

from __future__ import annotations

from comt_cli.campaign.queue import RunQueue
from comt_cli.data.storage import ProgressCallback
from comt_cli.errors import RunInterrupted
from comt_cli.tasks.base import AnyDataset
from comt_cli.training.processes import StopSignal


def prepare_all(queue: RunQueue, progress: ProgressCallback, stop: StopSignal) -> dict[str, AnyDataset]:
    """Every data set that the open runs of the queue read, by its fingerprint; the queue receives their content.

    Raises:
        RunInterrupted: a signal came meanwhile; what is ready is kept.
        UserError, StorageError: see `comt_cli.data.prepare`.
    """

    def preparing(stage: str, done: int, total: int | None) -> None:
        if stop.number is not None:
            raise RunInterrupted(
                "stopped while the data was being prepared; what is ready is kept",
                "The same command resumes from there.",
                stop.number,
            )
        progress(stage, done, total)

    datasets: dict[str, AnyDataset] = {}
    # Again where what was prepared has made other runs open: one whose source has turned out to be another run.
    while unprepared := [shared.spec for shared in queue.open if shared.spec.data_fingerprint not in datasets]:
        for spec in unprepared:
            if spec.data_fingerprint not in datasets:
                datasets[spec.data_fingerprint] = spec.task.prepare(spec.settings, preparing)
        queue.data_prepared({fingerprint: dataset.content_hash for fingerprint, dataset in datasets.items()})
    return datasets
