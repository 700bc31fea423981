"""A trained translation model, from our own checkpoints and runs, with what is needed to feed it text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from comt_cli.data.tokenizer import Tokenizer
from comt_cli.data.tokenizers import tokenizer_from_json
from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import (
    assign,
    check_tokens,
    checkpoint_in,
    name_of,
    read_state,
    shown_names,
    spec_in,
    wired,
)
from comt_cli.models.base import Model
from comt_cli.models.build import empty_network
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.decoding import DecodeSettings

ACCEPTED = "Give a checkpoint.pt or run directory of a translation model."


@dataclass(frozen=True)
class LoadedTranslation:
    """`model` has the types that the file stored. `decode` is how the run decodes; `longest` the most tokens of a
    sentence that it was trained on. `name` is short and fit for a folder."""

    model: Model
    tokenizer: Tokenizer
    decode: DecodeSettings
    longest: int | None
    name: str
    spec: RunSpec


def load_translation(source: str | Path) -> LoadedTranslation:
    """Load the translation model at `source`, a checkpoint file or run directory, onto the CPU; it is training.

    Raises:
        UserError: nothing is there, or it is damaged, foreign, or of a model that does not translate.
    """
    path = Path(source)
    if path.is_dir():
        checkpoint = checkpoint_in(path)
        if checkpoint is None:
            raise UserError(f"{path} holds no translation model: it has {shown_names(path)}", ACCEPTED)
        path = checkpoint
    elif not path.is_file():
        raise UserError(f"there is no translation model {source}", ACCEPTED)
    state = read_state(path)
    spec = spec_in(state, path)
    decode = getattr(spec.settings, "decode", None)
    if not isinstance(decode, DecodeSettings) or not {"tokenizer", "vocabulary"} <= state.keys():
        raise UserError(f"{path} is a checkpoint of comt {spec.command}, which does not translate", ACCEPTED)
    wiring, settings = wired(spec, path), spec.settings
    _check_depths(state["model"], settings.model.shape().depths, path)
    dimensions = spec.task.dimensions(settings) | {
        "vocabulary": check_tokens(state["model"], state["vocabulary"], path)
    }
    model = empty_network(settings.model, wiring, **dimensions)
    assign(model, state["model"], path)
    try:
        tokenizer = tokenizer_from_json(state["tokenizer"])
        tokenizer.special.need("begin")
    except ValueError as error:
        raise UserError(f"{path}: its tokenizer cannot be restored: {error}") from None
    longest = getattr(settings.data, "max_length", None)
    return LoadedTranslation(model, tokenizer, decode, longest, name_of(spec), spec)


def _check_depths(weights: Mapping[str, Tensor], depths: Mapping[str, int], path: Path) -> None:
    """Refuse weights of other depths than those that the settings say. As `check_blocks`, before a model is built."""
    for stack, depth in depths.items():
        found = {name.split(".")[1] for name in weights if name.startswith(f"{stack}.")}
        if len(found) != depth:
            raise UserError(f"{path}: its weights have {len(found)} layers of the {stack}; they are not its spec's")
