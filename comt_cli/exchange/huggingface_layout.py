"""Layouts of `transformers` by family of models: names of tensors, keys of `config.json`, and what can be
expressed; and the way from its tensors to our fused ones and back. One file a family, `huggingface_<family>.py`."""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import misfits, problem_of
from comt_cli.exchange.loaded import LoadedText
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.methods import method_from
from comt_cli.models.build import empty_network
from comt_cli.recipe.settings import MAX_VOCABULARY


class Layout(ABC):
    """How `transformers` lays out the plain models of one family, which is its `model_type` too.

    Attributes:
        words: what such a model is called there, with the article; `ours` here, without it.
        loaded: the class of a loaded one; `architectures`: the classes of transformers, of which the first is written.
        method: the plain model's; `connections`: what joins its blocks, `joined` in words; `norm`: its norms' class,
            `norm_words` in words.
        outer: public names of the parameters outside of blocks; `inner`: of those in a block, below `blocks`, a dot and
            its number; `sites`: of the projections there.
        shared: tensors that a checkpoint may hold a second time, and the one of ours whose copy each must be.
        supported: options of a configuration that change the network, and the values that ours has; absent is fine.
    """

    words: ClassVar[str]
    ours: ClassVar[str]
    loaded: ClassVar[type[LoadedText]]
    architectures: ClassVar[tuple[str, ...]]
    method: ClassVar[str]
    connections: ClassVar[tuple[type[ResidualConnection], ...]]
    joined: ClassVar[str]
    norm: ClassVar[type[nn.Module]]
    norm_words: ClassVar[str]
    outer: ClassVar[Mapping[str, str]]
    inner: ClassVar[Mapping[str, str]]
    sites: ClassVar[Mapping[str, str]]
    blocks: ClassVar[str]
    shared: ClassVar[Mapping[str, str]] = {}
    supported: ClassVar[Mapping[str, tuple[Any, ...]]]

    @abstractmethod
    def config(self, model: Any, context_length: int | None) -> dict[str, Any]:
        """`config.json` of a plain model."""

    @abstractmethod
    def settings(self, config: Mapping[str, Any], origin: str) -> Any:
        """Our settings of a `config.json`. Raises `KeyError`, `ValidationError` or `UserError`."""

    @abstractmethod
    def outer_norms(self, model: Any) -> list[nn.Module]:
        """The model's norms outside of its blocks."""

    def weight_name(self, public: str, settings: Any) -> str | None:
        """A tensor's name as it is written today; None for one that is no weight of such a model."""
        return public

    def settings_from(self, config: Mapping[str, Any], origin: str) -> tuple[Any, int]:
        """Our settings and the vocabulary of a `config.json`. Raises `UserError` naming what cannot be expressed."""
        architectures = config.get("architectures") or list(self.architectures[:1])
        if not isinstance(architectures, list) or [one for one in architectures if one not in self.architectures]:
            raise UserError(f"{origin} describes {architectures} of type {config['model_type']!r}", read_here())
        for key, allowed in self.supported.items():
            if key in config and config[key] not in allowed:
                raise UserError(
                    f"{origin}: {key} = {json.dumps(config[key])} is not supported",
                    f"Our {self.ours} has no such part.",
                )
        try:
            settings = self.settings(config, origin)
            vocabulary = config["vocab_size"]
        except KeyError as error:
            raise UserError(f"{origin} does not say {error.args[0]}") from None
        except ValidationError as error:
            raise UserError(f"{origin}: {problem_of(error)}") from None
        if type(vocabulary) is not int or not 1 <= vocabulary <= MAX_VOCABULARY:  # a bool is an int, and no number
            raise UserError(f"{origin}: vocab_size = {json.dumps(vocabulary)} is not a number of tokens")
        return settings, vocabulary

    def split(self, model: Any) -> dict[str, Tensor]:
        """A plain model's tensors under their public names, the fused projections split by site (views, no copies)."""
        return {public: tensor for _, parts in self._parts(model) for public, tensor in parts.items()}

    def join(self, settings: Any, vocabulary: int, given: Mapping[str, Tensor], origin: str) -> Any:
        """The plain model that holds the tensors `given` under their public names; their types are kept.

        Raises:
            UserError: a tensor is missing, has another shape than `settings` say, or has no place in this model; or one
                that the model shares is not the same in both places.
        """
        for copy, original in self.shared.items():
            if copy in given and original in given and not _equal(given[copy], given[original]):
                raise UserError(
                    f"{origin}: {copy} is not {original}",
                    f"Our {self.ours} has one tensor for both: these weights are not tied.",
                )
        known = {name: self.weight_name(name, settings) for name in given}
        given = {name: given[public] for public, name in known.items() if name is not None}
        model = empty_network(settings, method_from({"name": self.method}).wiring(), vocabulary=vocabulary)
        parts_of = dict(self._parts(model))
        expected = {public: part for parts in parts_of.values() for public, part in parts.items()}
        if wrong := misfits(given, expected):
            raise UserError(f"{origin}: its tensors are not those of {self.words} of its configuration: {wrong}")
        if whole := next((name for name, tensor in given.items() if not tensor.is_floating_point()), None):
            raise UserError(f"{origin}: {whole} is of {given[whole].dtype}, not of floating-point numbers")
        found = {name: [given[public] for public in parts] for name, parts in parts_of.items()}
        model.load_state_dict(
            {name: torch.cat(parts) if len(parts) > 1 else parts[0] for name, parts in found.items()}, assign=True
        )
        return model

    def _parts(self, model: Any) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Each of the model's parameters by name, with the public tensors it is made of, in the order of its rows."""
        fused = {path: module for path, module in model.named_modules() if isinstance(module, Projections)}
        for name, tensor in model.state_dict().items():
            if name in self.outer:
                yield name, {self.outer[name]: tensor}
                continue
            _, layer, rest = name.split(".", 2)
            prefix = f"{self.blocks}.{layer}"
            if rest in self.inner:
                yield name, {f"{prefix}.{self.inner[rest]}": tensor}
            else:
                path, _, kind = name.rpartition(".")  # its weight, or its bias
                rows = zip(fused[path].sites, torch.split(tensor, fused[path].widths), strict=True)
                yield name, {f"{prefix}.{self.sites[site.name]}.{kind}": part.detach() for site, part in rows}


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.float(), other.float())


FAMILIES = ("llama", "bert")


def layout_of(family: object) -> Layout | None:
    """The layout of a family of models; None where it has none."""
    if family not in FAMILIES:
        return None
    layout: Layout = importlib.import_module(f"comt_cli.exchange.huggingface_{family}").LAYOUT
    return layout


def read_here() -> str:
    """A hint: what there is a layout for."""
    layouts = {family: layout_of(family) for family in FAMILIES}
    return "comt reads " + "; ".join(
        f"{', '.join(layout.architectures)}, {family!r}" for family, layout in layouts.items() if layout is not None
    )


def context_length(config: Mapping[str, Any]) -> int | None:
    """The longest text that a configuration says its model was trained on, in tokens."""
    length = config.get("max_position_embeddings")
    return length if isinstance(length, int) and length > 0 else None


def type_name(model: Any) -> str:
    """The type that the weights are stored in, `float32` or `bfloat16`."""
    return str(model.embedding.weight.dtype).removeprefix("torch.")
