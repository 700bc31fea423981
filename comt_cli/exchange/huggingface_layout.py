"""What differs between the models that `transformers` lays out: names of tensors, keys of `config.json`, and what can
be expressed. One file a family of models, `huggingface_<family>.py`."""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ValidationError
from torch import nn

from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedText
from comt_cli.layers.residual.base import ResidualConnection
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

    @abstractmethod
    def sizes(self, settings: Any, vocabulary: int) -> Mapping[str, list[int]]:
        """The shapes of some tensors, by public name, that show what size a model is of."""

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
            problem = error.errors()[0]
            raise UserError(f"{origin}: {'.'.join(map(str, problem['loc']))} {problem['msg']}") from None
        if type(vocabulary) is not int or not 1 <= vocabulary <= MAX_VOCABULARY:  # a bool is an int, and no number
            raise UserError(f"{origin}: vocab_size = {json.dumps(vocabulary)} is not a number of tokens")
        return settings, vocabulary


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
