"""The mean of the weights that a run kept, as a checkpoint of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import OF_TRAINING, misfits, read_state, write_state
from comt_cli.exchange.sources import no_checkpoint

_KEPT = re.compile(r"weights-(\d+)\.pt")


def kept_weights(run: Path) -> dict[int, Path]:
    """The files of weights that a run keeps, `weights-<step>.pt`, by their step, in rising order."""
    found = {int(match[1]): path for path in run.iterdir() if (match := _KEPT.fullmatch(path.name))}
    return dict(sorted(found.items()))


def mean_weights(paths: Sequence[Path], run_id: object, hint: str | None = None) -> dict[str, Tensor]:
    """The mean of every parameter over these files, which is taken in float64 and has the parameter's type. Names that
    share one tensor in the files do so in the mean.

    Raises:
        UserError: a file is gone, damaged, another run's, or of another architecture.
    """
    means: dict[str, Tensor] = {}
    likes: dict[str, Tensor] = {}
    for path in paths:
        try:
            state = read_state(path, parts=False)
        except UserError as error:
            raise UserError(error.message, hint or error.hint) from None
        weights: dict[str, Tensor] = state["model"]
        likes = likes or weights
        if state.get("id") != run_id:
            raise UserError(f"{path} belongs to run {state.get('id')}, not {run_id}", hint)
        if wrong := misfits(weights, likes):
            raise UserError(f"{path} has other parameters than {paths[0]}: {wrong}", hint)
        for name, tensor in weights.items():
            part = tensor.double() / len(paths)
            means[name] = means[name] + part if name in means else part
    first: dict[tuple[object, ...], Tensor] = {}
    for name, like in likes.items():
        own = means[name].to(like.dtype)
        where = (like.untyped_storage().data_ptr(), like.storage_offset(), like.shape, like.stride())
        means[name] = first.setdefault(where, own) if like.numel() else own
    return means


def average(run: Path, last: int, out: Path | None) -> tuple[Path, list[int]]:
    """Write the mean of the `last` weights that a run keeps, by step, as a checkpoint that every verb reads: what
    belongs to the model besides is that of the run's checkpoint. Returns the file and the steps.

    Raises:
        UserError: so many are not kept; or as `mean_weights`.
        StorageError: the disk is full or the folder gone.
    """
    if not (run / "checkpoint.pt").is_file():
        raise no_checkpoint(run)
    kept = kept_weights(run)
    if len(kept) < last:
        listed = f" ({', '.join(map(str, kept))})" if kept else ""
        raise UserError(
            f"{run} keeps the weights of {len(kept)} steps{listed}; {last} cannot be averaged",
            "A run that is trained with --set train.keep_every=0.1 keeps the weights of every tenth of its steps.",
        )
    chosen = list(kept)[-last:]
    state = read_state(run / "checkpoint.pt")
    mean = mean_weights([kept[step] for step in chosen], state.get("id"))
    if wrong := misfits(mean, state["model"]):
        raise UserError(f"the weights in {run} are not those of its checkpoint: {wrong}")
    parts = {key: value for key, value in state.items() if key not in ("format", "spec", "id", *OF_TRAINING)}
    out = out or run / f"average-{chosen[0]}-{chosen[-1]}.pt"
    about = {"spec": state["spec"], "id": state.get("id"), "averaged_steps": chosen}
    write_state(out, {**about, **parts, "model": mean})
    return out, chosen
