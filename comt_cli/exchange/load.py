"""A trained model from wherever it lies: our checkpoints and runs, Hugging Face folders and hub names, GGUF files."""

from __future__ import annotations

from pathlib import Path

from comt_cli.data.tokenizers import tokenizer_from_json
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import (
    assign,
    check_blocks,
    check_tokens,
    checkpoint_in,
    name_of,
    read_state,
    shown_names,
    spec_in,
    wired,
)
from comt_cli.exchange.codecs import OwnCodec
from comt_cli.exchange.loaded import LoadedModel, describe
from comt_cli.exchange.sources import ACCEPTED, HUB_NAME
from comt_cli.models.build import empty_network
from comt_cli.tasks.settings.language import Settings

COMMAND = "train-lm"
"""What trains the models that are loaded here."""


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
            from comt_cli.exchange.gguf import read_gguf

            return read_gguf(path)
        if path.suffix == ".safetensors":
            raise UserError(f"{path} holds weights alone", "Give the folder, which has config.json too.")
        return read_own(path)
    if HUB_NAME.fullmatch(str(source)):
        return _load_from_hub(str(source))
    raise UserError(f"there is no model {source}", ACCEPTED)


def _load_folder(folder: Path) -> LoadedModel:
    if (checkpoint := checkpoint_in(folder)) is not None:
        return read_own(checkpoint)
    if (folder / "config.json").is_file():
        from comt_cli.exchange.huggingface import read_huggingface

        return read_huggingface(folder)
    raise UserError(f"{folder} holds no model: it has {shown_names(folder)}", ACCEPTED)


def _load_from_hub(name: str) -> LoadedModel:
    """Fetch only what is needed; without network, the cached copy is used."""
    from huggingface_hub import snapshot_download

    from comt_cli.exchange.huggingface import HUB_FILES, read_huggingface

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
        UserError: it is cut short, foreign, from another version, an image classifier's, or its parts do not fit
            together.
    """
    state = read_state(path)
    spec = spec_in(state, path)
    if spec.command != COMMAND:
        raise UserError(
            f"{path} is a checkpoint of comt {spec.command}, not of a language model (comt {COMMAND})",
            "comt analyze-gates looks into image classifiers, too.",
        )
    settings = spec.settings_as(Settings)
    wiring = wired(spec, path)
    weights = state["model"]
    check_blocks(weights, settings.model.shape().layers, path)
    vocabulary = check_tokens(weights, state["vocabulary"], path)
    model = empty_network(settings.model, wiring, vocabulary=vocabulary, length=settings.data.sequence_length)
    assign(model, weights, path)
    try:
        tokenizer = tokenizer_from_json(state["tokenizer"])
    except ValueError as error:
        raise UserError(f"{path}: its tokenizer cannot be restored: {error}") from None
    return LoadedModel(
        model=model,
        name=name_of(spec),
        description=describe(model, spec.method["name"]),
        codec=OwnCodec(tokenizer),
        context_length=settings.data.sequence_length,
        spec=spec,
    )
