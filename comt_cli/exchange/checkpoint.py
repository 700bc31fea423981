"""The file that training writes and everything else reads: one dictionary of tensors and plain values.

format       `FORMAT`
spec, id     the run (`RunSpec`)
<parts>      what its models need beside weights (`Task.checkpoint_parts`): vocabulary, tokenizer, classes ...
model        the weights by name, in full; floating-point tensors
optimizer    its state by the parameters' order (`training.checkpoint.full_optimizer_state`); None of the last step
progress     counters of the loop (`training.checkpoint.Counters`)
random       states of the generators (`training.checkpoint.random_states`)

Files of weights alone have `step`, or `averaged_steps`, in the place of parts or of `OF_TRAINING`. All are read with
`weights_only=True`: a checkpoint from a stranger runs no code.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from comt_cli.data.storage import first_line
from comt_cli.errors import UserError
from comt_cli.exchange import ACCEPTED, check_source
from comt_cli.files import atomic_file
from comt_cli.methods import method_from
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import tasks

FORMAT = 1
OF_TRAINING = ("optimizer", "progress", "random")
"""The entries with which a run resumes, and which no other reader needs."""
_KEPT = re.compile(r"weights-(\d+)\.pt")


def read_state(path: Path, *, mapped: bool = True, parts: bool = True) -> dict[str, Any]:
    """The dictionary of a checkpoint file, its tensors on the CPU; nothing in it is executed.

    `mapped` tensors are read from the file when they are used, so that a model can be had without its optimizer's
    state. Every record is compared with its checksum beforehand, which torch.load does not do. `parts`: it must have
    what its task needs beside the weights. Raises `UserError` that says what is wrong, or what else it holds.
    """
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}")
    with path.open("rb") as handle:  # one that the system refuses is no damaged one, which a hint says to delete
        if not zipfile.is_zipfile(handle):  # looks for the list of contents, which is written last
            said = f"{path} is not a checkpoint, or is cut short, after {path.stat().st_size:,} bytes"
            raise UserError(said, ACCEPTED)
    try:
        with zipfile.ZipFile(path) as archive:
            # torch.load would take compressed records for the tensors, and a few bytes can stand for gigabytes.
            if any(record.compress_type != zipfile.ZIP_STORED for record in archive.infolist()):
                raise ValueError("its records are compressed")
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"its record {damaged} does not fit its checksum")
        with warnings.catch_warnings(action="ignore"):  # foreign archives (TorchScript's) warn
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # zipfile, pickle and torch raise errors of many kinds, and the system its own
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{path} cannot be read as a checkpoint: {reason}", "Copy it anew, or take another.") from None
    if not isinstance(state, dict) or "spec" not in state or "model" not in state:
        raise UserError(f"{path} is not a checkpoint of comt", ACCEPTED)
    if state.get("format") != FORMAT:
        raise UserError(f"{path} is a checkpoint of format {state.get('format')!r}; this comt reads format {FORMAT}")
    weights, spec = state["model"], state["spec"]
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.is_floating_point()
        for name, tensor in weights.items()
    ):
        raise UserError(f"{path}: its model is not floating-point tensors by name")
    task = tasks().get(str(spec.get("command"))) if parts and isinstance(spec, dict) else None
    if missing := [key for key in (task.checkpoint_parts if task else ()) if key not in state]:
        raise UserError(f"{path} lacks {' and '.join(missing)}")
    return state


def read_own(path: Path, run_id: object, hint: str | None = None, **how: bool) -> dict[str, Any]:
    """As `read_state`, of a run with this id. Raises `UserError`, with this hint where the file cannot be used."""
    try:
        state = read_state(path, **how)
    except UserError as error:
        raise UserError(error.message, hint or error.hint) from None
    if state.get("id") != run_id:
        raise UserError(f"{path} belongs to run {state.get('id')}, not {run_id}", "Move it out of the run directory.")
    return state


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint file, beside the one that is there, and rename it over that. Raises `StorageError`."""
    with atomic_file(path) as handle:
        try:
            torch.save({"format": FORMAT, **state}, handle)
        except RuntimeError as error:  # about offsets: torch's of whatever has ended the writing
            ended_by = error.__context__
            raise (ended_by if isinstance(ended_by, OSError | KeyboardInterrupt) else error) from None


def spec_in(state: Mapping[str, Any], path: Path) -> RunSpec:
    """The run whose checkpoint `state` is. Raises `UserError` where this version of comt does not have such runs."""
    try:
        spec = RunSpec.model_validate(state["spec"])
        fits = method_from(spec.method).fits(spec.task.sites)
    except KeyError as error:
        raise UserError(f"{path} uses the method {error.args[0]!r}, which this comt does not have") from None
    except ValidationError as error:
        raise UserError(f"{path}: its spec does not fit this version of comt: {problem_of(error)}") from None
    if not fits:
        raise UserError(f"{path} uses the method {spec.method['name']!r}, which is not for such a model")
    return spec


def problem_of(error: ValidationError) -> str:
    """The first problem that pydantic found, in one line: where, and what."""
    problem = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, problem["loc"])), problem["msg"])))


def misfits(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """The first three weights that are missing, have no place, or another shape than expected; "" where all fit."""
    wrong = [f"{name} is missing" for name in expected if name not in weights]
    wrong += [f"{name} has no place" for name in weights if name not in expected]
    wrong += [
        f"{name} is {list(weights[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    return "; ".join(wrong[:3]) + (f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else "")


# ---- averages


def kept_weights(run: Path) -> dict[int, Path]:
    """The files of weights that a run keeps, `weights-<step>.pt`, by their step, in rising order."""
    found = {int(match[1]): path for path in run.iterdir() if (match := _KEPT.fullmatch(path.name))}
    return dict(sorted(found.items()))


def mean_weights(paths: Sequence[Path], run_id: object, hint: str | None = None) -> dict[str, Tensor]:
    """The mean of every parameter over these files, which is taken in float64 and has the parameter's type. Raises
    `UserError` where a file is gone, damaged, another run's, or of another architecture."""
    means: dict[str, Tensor] = {}
    likes: dict[str, Tensor] = {}
    for path in paths:
        weights: dict[str, Tensor] = read_own(path, run_id, hint, parts=False)["model"]
        likes = likes or weights
        if wrong := misfits(weights, likes):
            raise UserError(f"{path} has other parameters than {paths[0]}: {wrong}", hint)
        for name, tensor in weights.items():
            part = tensor.double() / len(paths)
            means[name] = means[name] + part if name in means else part
    return {name: mean.to(likes[name].dtype) for name, mean in means.items()}


def average(run: Path, last: int, out: Path | None) -> tuple[Path, list[int]]:
    """Write the mean of the `last` weights that a run keeps, by step, as a checkpoint that every verb reads. Returns
    the file and the steps. Raises `UserError`, `StorageError`."""
    check_source(str(run))
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
    parts = {key: value for key, value in state.items() if key not in ("format", "spec", "id", *OF_TRAINING)}
    out = out or run / f"average-{chosen[0]}-{chosen[-1]}.pt"
    about = {"spec": state["spec"], "id": state.get("id"), "averaged_steps": chosen}
    write_state(out, {**about, **parts, "model": mean})
    return out, chosen
