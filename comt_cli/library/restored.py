"""Loads trained models from any source, including gated folders (wrapped models of transformers, and exported runs).
These are rebuilt from config.json by classes of this package: no code of a folder is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from comt_cli.data.published import CONFIG, folder_tokenizer, read_object
from comt_cli.data.storage import first_line
from comt_cli.errors import UserError
from comt_cli.exchange import load as anything
from comt_cli.exchange.checkpoint import misfits, problem_of
from comt_cli.exchange.codecs import LibraryCodec
from comt_cli.exchange.huggingface import fill, weights_in
from comt_cli.exchange.loaded import Loaded, LoadedModel, LoadedText, text_network
from comt_cli.library.export import Network
from comt_cli.library.saving import host_of
from comt_cli.library.wrap import Wrapping, attach
from comt_cli.methods import in_words
from comt_cli.models.build import empty_network, wiring_of
from comt_cli.models.flops import parameter_count
from comt_cli.tasks.settings.language import ModelSettings

L = TypeVar("L", bound=Loaded)


def load(source: str | Path, kind: type[L]) -> L:
    """As `exchange.load.load`, which reads only plain folders, including gated ones. Raises `UserError`."""
    return anything.load(source, kind, read_gated)


class LoadedWrapped(LoadedText):
    """A wrapped language model of transformers."""

    @classmethod
    def kind(cls) -> str:
        return "a wrapped model of transformers"

    @property
    def vocabulary(self) -> int:
        return int(self.model.get_input_embeddings().num_embeddings)


def read_gated(folder: Path, name: str) -> LoadedText:
    """Read a folder with a model type of comt. Raises `UserError` if comt did not write its configuration, this
    transformers has no such model, or tensors do not fit."""
    config, origin = read_object(folder / CONFIG), str(folder / CONFIG)
    said = config.get("comt")
    if not isinstance(said, dict):
        hint = "comt export, and save_pretrained of a wrapped model, write it."
        raise UserError(f"{origin}: the key comt, with the network's method, is missing", hint)
    try:
        model, kind, words = (_exported if config["model_type"] == "comt" else _wrapped)(folder, config, said)
    except KeyError as error:
        raise UserError(f"{origin}: the key {error.args[0]} is missing") from None
    except ValidationError as error:
        raise UserError(f"{origin}: {problem_of(error)}") from None
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # from code with wrong values
        raise UserError(f"{origin} does not describe a network: {first_line(error)}") from None
    length = config.get("max_position_embeddings")
    length = length if isinstance(length, int) and length > 0 else None
    words = f"{words}, {parameter_count(model):,} parameters"
    tokenizer = folder_tokenizer(folder, config)
    codec = None if tokenizer is None else LibraryCodec(tokenizer)
    return kind(model.eval(), name, words, codec, length)


def _exported(folder: Path, config: Mapping[str, Any], said: Mapping[str, Any]) -> tuple[Any, type[LoadedText], str]:
    settings, method = ModelSettings.model_validate(said["settings"]), said["method"]
    model = empty_network(settings, wiring_of(method), vocabulary=config["vocab_size"])
    _set_numbers(model, said["numbers"])
    fill(model, weights_in(folder), lambda network: Network(network).tensors, str(folder))
    _set_numbers(model, said["numbers"])
    return model, LoadedModel, f"method {in_words(method)}, {text_network(model)}"


def _set_numbers(model: nn.Module, numbers: Mapping[str, float]) -> None:
    for name, number in numbers.items():
        owner, _, own = name.rpartition(".")
        setattr(model.get_submodule(owner), own, torch.tensor(float(number)))


def _wrapped(folder: Path, config: Mapping[str, Any], said: Mapping[str, Any]) -> tuple[Any, type[LoadedText], str]:
    import transformers

    wrapping, given = TypeAdapter(Wrapping).validate_python(said["wrapping"]), weights_in(folder)
    host = host_of(said["model"], config["model_type"])
    if host.main_input_name != "input_ids":
        raise UserError(f"{folder} holds a {host.__name__}, which does not read text")
    plain = host.config_class(**_stated({key: config[key] for key in config.keys() - {"comt", "model_type"}}))
    with torch.device("meta"):
        model = host(plain)
        own = model.state_dict().keys()
        attach(model, wrapping)
    state = model.state_dict(keep_vars=True)
    held = {id(state[name]) for name in given.keys() & state.keys()}  # tied ones are stored once
    expected = {name: tensor for name, tensor in state.items() if name in given or id(tensor) not in held}
    if wrong := misfits(given, expected):
        raise UserError(f"{folder}: the tensors do not match the network of its {CONFIG}: {wrong}")
    of_host = {name: tensor for name, tensor in given.items() if name in own}
    model = attach(host.from_pretrained(None, config=plain, state_dict=of_host), wrapping)
    model.load_state_dict(given, strict=False)
    model.name_or_path = str(folder)
    if (folder / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return model, LoadedWrapped, f"{host.__name__} of transformers, wrapped with {in_words(wrapping.method)}"


def _stated(given: Any) -> Any:
    """Configuration without keys that could make transformers download or run code, such as kernels of a hub."""
    if isinstance(given, list):
        return [_stated(each) for each in given]
    if not isinstance(given, dict):
        return given
    refused = ("auto_map", "quantization_config", "implementation", "kernel", "trust_remote_code")
    kept = [key for key in given if key[:1] != "_" and not any(each in key for each in refused)]
    return {key: _stated(given[key]) for key in kept}
