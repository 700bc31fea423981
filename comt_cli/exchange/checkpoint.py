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
from typing import IO, Any

import torch
from pydantic import ValidationError
from torch import Tensor

from comt_cli.data.storage import first_line
from comt_cli.errors import UserError
from comt_cli.exchange import ACCEPTED, check_source
from comt_cli.files import atomic_file
from comt_cli.methods import method_from
from comt_cli.models.pretrained import merged
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import tasks

FORMAT = 1
OF_TRAINING = ("optimizer", "progress", "random")
"""The entries with which a run resumes, and which no other reader needs."""
_ZIP = b"PK\x03\x04"  # the first bytes of a file of torch.save
_KEPT = re.compile(r"weights-(\d+)\.pt")


def read_state(path: Path, *, mapped: bool = True, parts: bool = True) -> dict[str, Any]:
    """The dictionary of a checkpoint file, its tensors on the CPU; nothing in it is executed.

    `mapped` tensors are read from the file when they are used, so that a model can be had without its optimizer's
    state. Every record is compared with its checksum beforehand, which torch.load does not do. `parts`: it must have
    what its task needs beside the weights. Raises `UserError` that says what is wrong, or what else it holds.
    """
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}")
    with path.open("rb") as handle:
        start = handle.read(4)
    if start != _ZIP:
        raise UserError(f"{path} is not a checkpoint: it begins with {start!r}, not with {_ZIP!r}", ACCEPTED)
    unreadable = f"{path} cannot be read as a checkpoint"
    try:
        with zipfile.ZipFile(path) as archive:
            # torch.load would take compressed records for the tensors, and a few bytes can stand for gigabytes.
            packed = [info.filename for info in archive.infolist() if info.compress_type != zipfile.ZIP_STORED]
            damaged = archive.testzip() if not packed else None
        with warnings.catch_warnings(action="ignore"):  # foreign archives (TorchScript's) warn
            usable = not packed and damaged is None
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped) if usable else None
    except Exception as error:  # zipfile, pickle and torch raise errors of many kinds, and the system its own
        if not zipfile.is_zipfile(path):  # looks for the list of contents, which is written last
            cut = f"it is cut short, after {path.stat().st_size:,} bytes"
            raise UserError(f"{unreadable}: {cut}", "Copy it anew, or take another checkpoint.") from None
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{unreadable}: {reason}", "It is damaged, or not of comt.") from None
    if packed:
        raise UserError(f"{unreadable}: its record {packed[0]} is compressed")
    if damaged is not None:
        raise UserError(f"{path} is damaged: its record {damaged} does not fit its checksum", "Copy it anew.")
    if not isinstance(state, dict) or "spec" not in state or "model" not in state:
        raise UserError(f"{path} is not a checkpoint of comt: it holds {_what(state)}", ACCEPTED)
    if state.get("format") != FORMAT:
        raise UserError(f"{path} is a checkpoint of format {state.get('format')!r}; this comt reads format {FORMAT}")
    weights, spec = state["model"], state["spec"]
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.is_floating_point()
        for name, tensor in weights.items()
    ):
        raise UserError(f"{path}: its model is {_what(weights)}, not floating-point tensors by name")
    task = tasks().get(str(spec.get("command"))) if parts and isinstance(spec, dict) else None
    if missing := [key for key in (task.checkpoint_parts if task else ()) if key not in state]:
        raise UserError(f"{path} lacks {' and '.join(missing)}")
    return state


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint file, beside the one that is there, and rename it over that. Raises `StorageError`."""
    with atomic_file(path) as handle:
        writer = _Writer(handle)
        try:
            torch.save({"format": FORMAT, **state}, writer)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise (writer.ended_by or error) from None


class _Writer:
    """A file that remembers what ended its writing, of which torch makes an error about offsets."""

    def __init__(self, handle: IO[bytes]) -> None:
        self._handle = handle
        self.ended_by: OSError | KeyboardInterrupt | None = None

    def write(self, content: Any) -> int:
        try:
            return self._handle.write(content)
        except (OSError, KeyboardInterrupt) as error:
            self.ended_by = error
            raise

    def flush(self) -> None:
        self._handle.flush()


def spec_in(state: Mapping[str, Any], path: Path) -> RunSpec:
    """The run whose checkpoint `state` is. Raises `UserError` where this version of comt does not have such runs."""
    try:
        spec = RunSpec.model_validate(state["spec"])
    except ValidationError as error:
        raise UserError(f"{path}: its spec does not fit this version of comt: {problem_of(error)}") from None
    uses = f"{path} uses the method {spec.method.get('name')!r}"
    try:
        fits = method_from(spec.method).fits(spec.task.sites)
    except KeyError:
        raise UserError(f"{uses}, which this comt does not have") from None
    except ValidationError as error:
        raise UserError(f"{path}: its method does not fit this version of comt: {problem_of(error)}") from None
    if not fits:
        raise UserError(f"{uses}, which is not for such a model")
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


def _what(value: Any) -> str:
    if isinstance(value, dict):
        kind = "tensors" if value and all(isinstance(item, Tensor) for item in value.values()) else "entries"
        return f"{len(value)} {kind} ({', '.join(map(str, list(value)[:6]))})"
    return f"a {type(value).__name__}"


# ---- averages


def kept_weights(run: Path) -> dict[int, Path]:
    """The files of weights that a run keeps, `weights-<step>.pt`, by their step, in rising order."""
    found = {int(match[1]): path for path in run.iterdir() if (match := _KEPT.fullmatch(path.name))}
    return dict(sorted(found.items()))


def mean_weights(paths: Sequence[Path], run_id: object, hint: str | None = None) -> dict[str, Tensor]:
    """The mean of every parameter over these files, which is taken in float64 and has the parameter's type. Names that
    share one tensor in the files do so in the mean. Raises `UserError` where a file is gone, damaged, another run's, or
    of another architecture."""
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
    if wrong := misfits(mean, merged(state["model"], spec_in(state, run / "checkpoint.pt").settings.train)):
        raise UserError(f"the weights in {run} are not those of its checkpoint: {wrong}")
    parts = {key: value for key, value in state.items() if key not in ("format", "spec", "id", *OF_TRAINING)}
    out = out or run / f"average-{chosen[0]}-{chosen[-1]}.pt"
    about = {"spec": state["spec"], "id": state.get("id"), "averaged_steps": chosen}
    write_state(out, {**about, **parts, "model": mean})
    return out, chosen
