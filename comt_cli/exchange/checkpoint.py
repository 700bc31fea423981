"""The checkpoint file: one dictionary of tensors and plain values.

format       `FORMAT`
spec, id     the run (`RunSpec`)
<parts>      entries that its models need besides weights (`Task.checkpoint_parts`): vocabulary, tokenizer, classes ...
model        the full weights by name; floating-point tensors
optimizer    its state in the order of parameters (`training.checkpoint.full_optimizer_state`); None after the last step
progress     counters of the loop (`training.checkpoint.Counters`)
random       states of the generators (`training.checkpoint.random_states`)

Files of weights alone have `step` or `averaged_steps` instead of parts or `OF_TRAINING`. All are read with
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
"""The entries that only resuming a run needs."""
_KEPT = re.compile(r"weights-(\d+)\.pt")


def read_state(path: Path, *, mapped: bool = True, parts: bool = True) -> dict[str, Any]:
    """The dictionary of a checkpoint file, with tensors on the CPU; no code in it is run.

    `mapped` tensors are read from the file at their first use, so that a model loads without its optimizer's state. The
    checksum of every record is verified first, which torch.load does not do. `parts`: the entries that its task needs
    besides the weights must exist. Raises `UserError` if the file is damaged, or is not such a checkpoint.
    """
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}")
    with path.open("rb") as handle:  # an unreadable file is not a damaged one, and the hint must not say to replace it
        if not zipfile.is_zipfile(handle):  # looks for the table of contents, which is written last
            said = f"{path} is not a checkpoint, or was cut off after {path.stat().st_size:,} bytes"
            raise UserError(said, ACCEPTED)
    try:
        with zipfile.ZipFile(path) as archive:
            # torch.load would accept compressed records, where a few bytes can stand for gigabytes.
            if any(record.compress_type != zipfile.ZIP_STORED for record in archive.infolist()):
                raise ValueError("its records are compressed")
            if (damaged := archive.testzip()) is not None:
                raise ValueError(f"the checksum of its record {damaged} is wrong")
        with warnings.catch_warnings(action="ignore"):  # foreign archives (TorchScript's) warn
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # zipfile, pickle, torch and the system raise many kinds
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{path} cannot be read as a checkpoint: {reason}", "Copy it again, or use another.") from None
    if not isinstance(state, dict) or "spec" not in state or "model" not in state:
        raise UserError(f"{path} is not a checkpoint of comt", ACCEPTED)
    if state.get("format") != FORMAT:
        raise UserError(f"{path} is a checkpoint of format {state.get('format')!r}; this comt reads format {FORMAT}")
    weights, spec = state["model"], state["spec"]
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.is_floating_point()
        for name, tensor in weights.items()
    ):
        raise UserError(f"{path}: model is not a dictionary of floating-point tensors")
    task = tasks().get(str(spec.get("command"))) if parts and isinstance(spec, dict) else None
    if missing := [key for key in (task.checkpoint_parts if task else ()) if key not in state]:
        raise UserError(f"{path} has no {' and no '.join(missing)}")
    return state


def read_own(path: Path, run_id: object, hint: str | None = None, **how: bool) -> dict[str, Any]:
    """`read_state` for the run with this id. Raises `UserError`, with this hint if the file cannot be used."""
    try:
        state = read_state(path, **how)
    except UserError as error:
        raise UserError(error.message, hint or error.hint) from None
    if state.get("id") != run_id:
        raise UserError(f"{path} belongs to run {state.get('id')}, not {run_id}", "Move it out of the run directory.")
    return state


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint file and rename it over the old one. Raises `StorageError`."""
    with atomic_file(path) as handle:
        try:
            torch.save({"format": FORMAT, **state}, handle)
        except RuntimeError as error:  # torch's error about offsets, after another error ended the writing
            ended_by = error.__context__
            raise (ended_by if isinstance(ended_by, OSError | KeyboardInterrupt) else error) from None


def spec_in(state: Mapping[str, Any], path: Path) -> RunSpec:
    """The run of a checkpoint's `state`. Raises `UserError` if this version of comt cannot represent it."""
    try:
        spec = RunSpec.model_validate(state["spec"])
        fits = method_from(spec.method).fits(spec.task.sites)
    except KeyError as error:
        raise UserError(f"{path} uses the method {error.args[0]!r}, which this comt does not have") from None
    except ValidationError as error:
        raise UserError(f"{path}: its spec does not fit this version of comt: {problem_of(error)}") from None
    if not fits:
        raise UserError(f"{path} uses the method {spec.method['name']!r}, which does not fit {spec.task.model_kind}")
    return spec


def problem_of(error: ValidationError) -> str:
    """The first problem that pydantic found, in one line: location and message."""
    problem = error.errors()[0]
    return ": ".join(filter(None, (".".join(map(str, problem["loc"])), problem["msg"])))


def misfits(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    """The first three weights that are missing, unexpected, or of another shape; "" if all fit."""
    wrong = [f"{name} is missing" for name in expected if name not in weights]
    wrong += [f"{name} is unexpected" for name in weights if name not in expected]
    wrong += [
        f"{name} is {list(weights[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    return "; ".join(wrong[:3]) + (f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else "")


# ---- averages


def kept_weights(run: Path) -> dict[int, Path]:
    """The files of weights in a run directory, `weights-<step>.pt`, by step in rising order."""
    found = {int(match[1]): path for path in run.iterdir() if (match := _KEPT.fullmatch(path.name))}
    return dict(sorted(found.items()))


def mean_weights(paths: Sequence[Path], run_id: object, hint: str | None = None) -> dict[str, Tensor]:
    """The mean of every parameter over these files, computed in float64, in the parameter's type. Raises `UserError` if
    a file is missing, damaged, another run's, or of another architecture."""
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
    """Write the mean of the `last` kept weights of a run as a checkpoint for all verbs. Returns the file and the steps.
    Raises `UserError`, `StorageError`."""
    check_source(str(run))
    kept = kept_weights(run)
    if len(kept) < last:
        listed = f" ({', '.join(map(str, kept))})" if kept else ""
        raise UserError(
            f"{run} has the weights of {len(kept)} steps{listed}; {last} were asked for",
            "Train with --set train.keep_every=0.1 to keep the weights ten times, at every tenth of the steps.",
        )
    chosen = list(kept)[-last:]
    state = read_state(run / "checkpoint.pt")
    mean = mean_weights([kept[step] for step in chosen], state.get("id"))
    parts = {key: value for key, value in state.items() if key not in ("format", "spec", "id", *OF_TRAINING)}
    out = out or run / f"average-{chosen[0]}-{chosen[-1]}.pt"
    about = {"spec": state["spec"], "id": state.get("id"), "averaged_steps": chosen}
    write_state(out, {**about, **parts, "model": mean})
    return out, chosen
