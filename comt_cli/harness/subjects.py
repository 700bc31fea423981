"""Models to evaluate: a run, as its exported folder; a folder in Hugging Face's layout; a model of the hub. They are
hashed, not loaded, so that what was evaluated before is known at once."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from comt_cli.data.storage import first_line, hash_file
from comt_cli.errors import UserError
from comt_cli.exchange import no_checkpoint
from comt_cli.files import Unreadable, cache_folder, canonical_json, read_json, sha256
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.evaluations import FOLDER

_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py")
"""Of a folder in Hugging Face's layout. No pickles."""
_GENERATIVE = ("CausalLM", "LMHeadModel", "ForConditionalGeneration")
"""In names of architectures that the harness can ask."""


@dataclass(frozen=True)
class Subject:
    """A model to evaluate: its name for people, the hash of its files, the folder of its results, and its own folder,
    which is made when it is needed. `brings_code`: the folder has Python code, which is run."""

    name: str
    weights: str
    kept: Path
    folder: Callable[[], AbstractContextManager[Path]]
    brings_code: bool


def of_run(directory: RunDirectory) -> Subject:
    """A run. Raises `UserError` where it is no language model, has not ended, or has no checkpoint."""
    spec = directory.spec()
    if spec.command != "train-lm":
        said = f"{directory.shown} is {spec.task.model_kind}, not a language model that continues texts"
        raise UserError(said, "--tasks takes runs of comt train-lm; without it comt evaluate takes those of any task.")
    if (state := directory.state()) is not RunState.done:
        said = "has diverged" if state is RunState.diverged else "has not ended"
        raise UserError(f"{directory.shown} {said}", "Tables show tasks of finished runs alone.")
    if not directory.checkpoint_file.is_file():
        raise no_checkpoint(directory.path)

    @contextlib.contextmanager
    def exported() -> Iterator[Path]:
        from comt_cli.exchange.huggingface import TOKENIZER
        from comt_cli.exchange.load import load
        from comt_cli.exchange.loaded import LoadedModel
        from comt_cli.library.export import write_huggingface

        with tempfile.TemporaryDirectory(prefix="comt-") as place:
            folder = Path(place) / spec.id
            write_huggingface(load(directory.checkpoint_file, LoadedModel), folder)
            if not (folder / TOKENIZER).is_file():
                said = f"{directory.shown}: its tokenizer cannot be written for transformers"
                raise UserError(said, "Those of data.tokenizer sentencepiece and bytes can; t5's normalises its text.")
            yield folder

    weights = hash_file(directory.checkpoint_file)
    return Subject(str(directory.shown), weights, directory.path / FOLDER, exported, brings_code=True)


def of_folder(folder: Path, name: str, *, trusts: bool) -> Subject:
    """A folder with config.json and safetensors. Raises `UserError` where it holds no language model, or code of its
    own that is not trusted."""
    try:
        configs = [read_json(path) for path in map(folder.joinpath, ("config.json", "tokenizer_config.json"))
                   if path.is_file()]  # fmt: skip
    except Unreadable as error:
        raise UserError(f"{folder} has a configuration that cannot be read: {error}") from None
    architectures = configs[0].get("architectures") or []
    brings_code = any("auto_map" in config for config in configs)
    if architectures and not any(kind in each for kind in _GENERATIVE for each in architectures):
        raise UserError(f"{name} holds {', '.join(architectures)}, not a language model that continues texts")
    if brings_code and not trusts:
        raise UserError(f"{name} brings Python code of its own", "If you trust it: --trust-remote-code")
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{name} holds no safetensors", "comt reads no pickles, which can run code when they are read.")
    files = sorted({path for pattern in _FILES for path in folder.glob(pattern)})
    weights = sha256(canonical_json([(path.name, hash_file(path)) for path in files]))
    kept = cache_folder() / FOLDER / weights[:16]
    return Subject(name, weights, kept, lambda: contextlib.nullcontext(folder), brings_code)


def of_hub(name: str, *, trusts: bool) -> Subject:
    """A model of the hub, `owner/model`; without network, its cached copy. Raises `UserError` as `of_folder`, and where
    it cannot be had."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(name, allow_patterns=list(_FILES))
    except Exception as error:  # the hub's client raises its own, the HTTP library's and the system's errors
        said = f"there is no run or folder {name}, and it cannot be had from the Hugging Face hub: {first_line(error)}"
        raise UserError(said, "Without network, give the path of a downloaded folder.") from None
    return of_folder(Path(folder), name, trusts=trusts)
