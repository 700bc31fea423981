"""Wrapped models of transformers as folders: `save_pretrained` also writes the added parts, with code that needs no
comt.

The folder has its own model type. Without `trust_remote_code` transformers refuses it, whereas the model's own type
would drop the added parts silently.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

from torch import nn

from comt_cli.errors import UserError
from comt_cli.files import write_text
from comt_cli.library.connect import adds_in, as_connected
from comt_cli.library.export import CODE, Parts
from comt_cli.library.gated import PlacedGate, Remade, carry, gates_in, remade_class
from comt_cli.library.hosts import path_of, stack_of
from comt_cli.methods import in_words

BASE = "transformers.modeling_utils.PreTrainedModel"


class Saved(Remade):
    """Model of transformers that is saved with its added parts. Its configuration does not change."""

    config: Any
    name_or_path: str
    plain_name: str

    def __init_subclass__(cls) -> None:  # transformers identifies its classes by module
        super().__init_subclass__()
        cls.__module__, cls.__qualname__ = cls.original.__module__, cls.original.__qualname__

    def save_pretrained(self, save_directory: Any, *inputs: Any, **named: Any) -> None:
        """As the original, with another model type and a code file. Raises `UserError` if that cannot suffice."""
        is_sharded = any(hasattr(parameter, "device_mesh") for parameter in self.parameters())
        if is_sharded and named.get("state_dict") is None and not named.get("distributed_checkpoint"):
            said = f"{self.original.__name__}: its weights are sharded over several processes"
            raise UserError(said, "Gather them first, save_pretrained(folder, state_dict=...), as Trainer does.")
        own, self.config = self.config, _saved_config(self)
        try:
            super().save_pretrained(save_directory, *inputs, **named)  # type: ignore[misc]
        finally:
            self.config = own
        self.name_or_path = str(save_directory)


def as_saved(model: nn.Module) -> None:
    """Let a model of transformers, if it is one, be saved with its added parts. Until it is saved it has no name:
    PEFT's adapters name their base by it and would be applied to the plain model."""
    if any(path_of(kind) == BASE for kind in type(model).__mro__):
        model.__class__ = remade_class(Saved, type(model))  # type: ignore[arg-type]
        assert isinstance(model, Saved)
        model.plain_name = model.name_or_path
        model.name_or_path = f"{model.plain_name or type(model).__name__}, wrapped and not saved"


def as_plain(model: nn.Module) -> None:
    """Undo `as_saved`."""
    if isinstance(model, Saved):
        model.name_or_path = model.plain_name
        del model.plain_name
        model.__class__ = model.original  # type: ignore[assignment]


class SavedConfig:
    """Configuration that is written together with the model's code."""

    code: str
    architectures: list[str]

    def save_pretrained(self, save_directory: Any, **named: Any) -> None:
        write_text(Path(save_directory) / CODE, self.__dict__.pop("code"))
        self.architectures = [f"Comt{self.architectures[0]}"]
        super().save_pretrained(save_directory, **named)  # type: ignore[misc]


def _saved_config(model: Saved) -> SavedConfig:
    """Copy of a wrapped model's configuration with the added parts. Raises `UserError`."""
    import transformers

    own, original = type(model.config), model.original
    for kind in (own, original):
        if getattr(transformers, kind.__name__, None) is not kind:
            said = f"{path_of(kind)} is not a class of transformers: a folder would lose its changes"
            raise UserError(said, "Use torch.save(model.state_dict(), ...); attach() rebuilds the model.")
    found = {
        name: f"{CODE.removesuffix('.py')}.Comt{original.__name__}"
        for name in transformers.models.auto.modeling_auto.__all__
        if original in _made_by(getattr(transformers, name), own)
    }
    if not found:
        raise UserError(f"no AutoModel class of transformers makes a {original.__name__}")
    description, code = _described(model)
    config: Any = copy.deepcopy(model.config)
    config.__class__ = type(f"Comt{own.__name__}", (SavedConfig, own), {"model_type": f"comt_{own.model_type}"})
    config.auto_map = {"AutoConfig": f"{CODE.removesuffix('.py')}.Comt{own.__name__}", **found}
    config.comt, config.code = description, code
    return config  # type: ignore[no-any-return]


def host_of(name: str, model_type: str) -> Any:
    """Class of transformers whose wrapped models have this model type. Raises `UserError` if there is none."""
    import transformers

    found = getattr(transformers, str(name), None)
    is_model = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    own = getattr(found, "config_class", None)
    if not is_model or f"comt_{getattr(own, 'model_type', None)}" != model_type:
        said = f"transformers {transformers.__version__} has no {name} for the model type {model_type}"
        raise UserError(said, "Try another version.")
    return found


def _made_by(auto: Any, config: type) -> tuple[type, ...]:
    made = getattr(auto, "_model_mapping", {}).get(config, ())
    return made if isinstance(made, tuple) else (made,)


def _described(model: Any) -> tuple[dict[str, Any], str]:
    """Added parts of a wrapped model as plain data, and the code that adds them."""
    placed, stack = [*gates_in(model)], stack_of(model)
    adds = adds_in(model, stack)
    blocks: dict[str, dict[str, nn.Module | None]] = {}
    for name, block in model.named_modules() if adds is not None else ():
        if stack is not None and block in stack.blocks:
            blocks[name] = {f"{part}_connection": getattr(block, f"{part}_connection") for part in ("attention", "mlp")}
            blocks[name] |= {"read_out": block.read_out} if block.read_out is not None else {}
    added = [each.gate for each in placed] + [part for parts in blocks.values() for part in parts.values() if part]
    every = [module for root in added for module in root.modules()]
    if hidden := next((module for module in every if module._non_persistent_buffers_set), None):
        raise UserError(f"{type(hidden).__name__} has buffers outside its state, which would be lost")
    own, original = type(model.config), model.original
    names = {"config": own.__name__, "host": original.__name__, "model_type": f"comt_{own.model_type}"}
    roots: list[Any] = [*([carry, PlacedGate] if placed else []), *([as_connected] if blocks else [])]
    parts = Parts("wrapped.py", every, *roots, **names, gates=bool(placed), blocks=bool(blocks))
    said: dict[str, Any] = {"model": original.__name__, "wrapping": dataclasses.asdict(model.comt_wrapping)}
    said["wrapping"]["sites"] = {site: [*modules] for site, modules in model.comt_wrapping.sites.items()}
    said["gates"], said["modules"] = {}, parts.modules
    for site in model.comt_wrapping.sites:
        here = [each for each in placed if each.site.name == site]
        numbers = [parts.numbered({"gate": each.gate}, f"{each.module}.")["gate"] for each in here]
        which = {"part": here[0].part, "parts": here[0].parts, "reads": [each.reads for each in here]}
        said["gates"][site] = {**which, "modules": numbers}
    said["blocks"] = [{"name": name, "parts": parts.numbered(own, f"{name}.")} for name, own in blocks.items()]
    if blocks and stack is not None:
        kept = ("sublayers", "norms", "arguments", "norm_is_behind")
        said["host"] = {name: getattr(stack.host, name) for name in kept}
    method = dict(sorted(model.comt_wrapping.method.items()))  # as read from the file
    title = f"{original.__name__} of transformers, wrapped with {in_words(method)}."
    return said, parts.code(title)
