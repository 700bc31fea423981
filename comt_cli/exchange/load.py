"""Load trained models: our checkpoints and runs, Hugging Face folders and hub names, GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from comt_cli import words
from comt_cli.data.published import CONFIG, hub_folder, read_object
from comt_cli.data.storage import first_line
from comt_cli.errors import UserError
from comt_cli.exchange import ACCEPTED, check_source
from comt_cli.exchange.checkpoint import misfits, read_state, spec_in
from comt_cli.exchange.loaded import KINDS, Loaded
from comt_cli.models.build import model_of
from comt_cli.models.pretrained import merged
from comt_cli.tasks import Task

L = TypeVar("L", bound=Loaded)
Gated = Callable[[Path, str], Loaded]
"""Reads a folder of comt's own model type; the second argument is the model's name."""


def load(source: str | Path, kind: type[L], gated: Gated | None = None) -> L:
    """Load the model at `source` onto the CPU, in the stored types.

    `source` is a checkpoint file or run directory of comt. If `kind` accepts files of other programs, it may also be a
    Hugging Face folder, a GGUF file, or (if no such path exists) the name of a hub repository. `Loaded` itself accepts
    models of any task. `gated` reads folders of gated models (`library.restored`). Raises `UserError` with the model
    found and the kind expected.
    """
    path, loaded = Path(source), None
    accepted = ACCEPTED if kind.foreign else f"Give a checkpoint.pt or run directory of comt {kind.command}."
    check_source(str(source))
    own = path / "checkpoint.pt" if (path / "checkpoint.pt").is_file() else path
    if kind.foreign and own is path:
        loaded = _foreign(source, gated)
    if loaded is None:
        if not own.is_file():
            raise UserError(f"{source} is not a model", accepted)
        loaded = _read_own(own)
    if not isinstance(loaded, kind):
        hint = accepted if loaded.spec is None else who_takes(loaded.spec.task)
        raise UserError(f"{source} is {loaded.kind()}, not {kind.kind()}", hint)
    return loaded


def _read_own(path: Path) -> Loaded:
    state = read_state(path)
    spec = spec_in(state, path)
    model = model_of(spec)
    try:
        weights = merged(state["model"], spec.settings.train)
    except (KeyError, RuntimeError) as error:
        raise UserError(f"{path}: its LoRA matrices do not fit its weights: {first_line(error)}") from None
    if wrong := misfits(weights, model.state_dict()):
        raise UserError(f"{path}: its weights do not fit its spec: {wrong}")
    model.load_state_dict(weights, assign=True)
    kind = next((kind for kind in KINDS if kind.command == spec.command), Loaded)
    return kind.from_checkpoint(model, state, spec, path)


def who_takes(task: Task[Any]) -> str | None:
    """A hint with the verbs that take the trained models of a task; None if there are none."""
    verbs = task.verbs
    return f"comt {words.listing(verbs)} {'take' if len(verbs) > 1 else 'takes'} it." if verbs else None


def _foreign(source: str | Path, gated: Gated | None) -> Loaded | None:
    """A model in another program's layout; None if `source` is not one. Raises `UserError`."""
    path = Path(source)
    if path.is_dir():
        return _folder(path, path.resolve().name, gated) if (path / CONFIG).is_file() else None
    if path.is_file():
        with path.open("rb") as handle:
            is_gguf = handle.read(4) == b"GGUF"
        if is_gguf or path.suffix == ".gguf":
            from comt_cli.exchange.huggingface import read_gguf

            return read_gguf(path)
        if path.suffix == ".safetensors":
            raise UserError(f"{path} has only weights", "Give its folder, with config.json.")
        return None
    return _folder(hub_folder(str(source)), path.name, gated)


def _folder(folder: Path, name: str, gated: Gated | None) -> Loaded:
    from comt_cli.exchange.huggingface import read_huggingface

    is_gated = str(read_object(folder / CONFIG).get("model_type")).partition("_")[0] == "comt"
    return gated(folder, name) if gated is not None and is_gated else read_huggingface(folder, name)
