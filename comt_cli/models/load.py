"""A trained model from wherever it lies: our checkpoints and runs, Hugging Face folders and hub names, GGUF files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor

from comt_cli.data.tokenizer import tokenizer_from_json
from comt_cli.errors import UserError
from comt_cli.models.build import empty_model, wiring_of
from comt_cli.models.checkpoint_file import ACCEPTED, read_state
from comt_cli.models.codecs import OwnCodec
from comt_cli.models.llama import Llama
from comt_cli.models.loaded import LoadedModel, describe
from comt_cli.recipe.plan import RunSpec

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def load_model(source: str | Path) -> LoadedModel:
    """Load the model at `source` onto the CPU, in the types that it was stored in.

    `source` is a checkpoint file or run directory of comt, a Hugging Face folder, a GGUF file, or, where no such path
    exists, the name of a hub repository, which is fetched into the hub's cache.

    Raises:
        UserError: nothing is there, or it is damaged or foreign; says what it holds and what was expected.
    """
    path = Path(source)
    if path.is_dir():
        return _load_folder(path)
    if path.is_file():
        with path.open("rb") as handle:
            is_gguf = handle.read(4) == b"GGUF"
        if is_gguf or path.suffix == ".gguf":
            from comt_cli.models.gguf import read_gguf

            return read_gguf(path)
        if path.suffix == ".safetensors":
            raise UserError(f"{path} holds weights alone", "Give the folder, which has config.json too.")
        return read_own(path)
    if _HUB_NAME.fullmatch(str(source)):
        return _load_from_hub(str(source))
    raise UserError(f"there is no model {source}", ACCEPTED)


def _load_folder(folder: Path) -> LoadedModel:
    if (folder / "checkpoint.pt").is_file():
        return read_own(folder / "checkpoint.pt")
    if (folder / "spec.json").is_file():
        raise UserError(f"{folder} is a run that has saved no checkpoint yet", "Wait until it has, or train it.")
    if (folder / "config.json").is_file():
        from comt_cli.models.huggingface import read_huggingface

        return read_huggingface(folder)
    names = sorted(path.name for path in folder.iterdir())
    held = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "nothing"
    raise UserError(f"{folder} holds no model: it has {held}", ACCEPTED)


def _load_from_hub(name: str) -> LoadedModel:
    """Fetch only what is needed; without network, the cached copy is used."""
    from huggingface_hub import snapshot_download

    from comt_cli.models.huggingface import HUB_FILES, read_huggingface

    try:
        folder = snapshot_download(name, allow_patterns=HUB_FILES)
    except Exception as error:  # the hub's client raises its own, the HTTP library's and the system's errors
        reason = str(error).strip().splitlines()
        raise UserError(
            f"there is no file or folder {name}, and it cannot be had from the Hugging Face hub: "
            f"{reason[0] if reason else type(error).__name__}",
            "Without network, give the path of a downloaded folder.",
        ) from None
    return read_huggingface(Path(folder), name.rpartition("/")[2])


def read_own(path: Path) -> LoadedModel:
    """Read a checkpoint that training wrote; nothing in it is executed.

    Raises:
        UserError: it is cut short, foreign, from another version, or its parts do not fit together.
    """
    state = read_state(path)
    try:
        spec = RunSpec.model_validate(state["spec"])
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise UserError(f"{path}: its spec does not fit this version of comt: {where}: {problem['msg']}") from None
    try:
        wiring = wiring_of(spec.method)
    except KeyError:
        raise UserError(f"{path} uses the method {spec.method.get('name')!r}, which this comt does not have") from None
    except ValidationError as error:
        raise UserError(f"{path}: its method does not fit this version of comt: {error.errors()[0]['msg']}") from None
    weights, vocabulary = state["model"], state["vocabulary"]
    layers = {name.split(".")[1] for name in weights if name.startswith("blocks.")}
    # Before anything is built: a forged number of layers must not keep the machine busy.
    if len(layers) != spec.settings.model.shape().layers or not isinstance(vocabulary, int) or vocabulary < 1:
        raise UserError(f"{path}: its weights have {len(layers)} layers; they are not those of its spec")
    model = empty_model(spec.settings.model, vocabulary, wiring)
    _assign(model, weights, path)
    try:
        tokenizer = tokenizer_from_json(state["tokenizer"])
    except ValueError as error:
        raise UserError(f"{path}: its tokenizer cannot be restored: {error}") from None
    return LoadedModel(
        model=model,
        name=f"{spec.row}-{spec.column}-seed{spec.seed}".replace("/", "-"),
        description=describe(model, spec.method["name"]),
        codec=OwnCodec(tokenizer),
        context_length=spec.settings.data.sequence_length,
        spec=spec,
    )


def _assign(model: Llama, weights: Mapping[str, Tensor], path: Path) -> None:
    """Give the meta model its weights, every one and no other, of the right shapes."""
    expected = model.state_dict()
    wrong = [f"{name} is missing" for name in expected if name not in weights]
    wrong += [f"{name} has no place" for name in weights if name not in expected]
    wrong += [
        f"{name} is {list(weights[name].shape)}, not {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in weights and weights[name].shape != tensor.shape
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise UserError(f"{path}: its weights do not fit its spec: {'; '.join(wrong[:3])}{more}")
    model.load_state_dict(weights, assign=True)
