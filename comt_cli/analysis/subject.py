"""The networks that a figure is drawn of, and their observations, each made once and shared by all figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from comt_cli.analysis.images import WatchedImages
from comt_cli.analysis.observed import (
    Observation,
    SiteValues,
    gate_carriers,
    observed_gates,
    observed_image,
    observed_pair,
    tokens_of,
)
from comt_cli.errors import UserError
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import Loaded, LoadedCaptioner, LoadedImageModel, LoadedText, LoadedTranslator
from comt_cli.runs.directory import RunDirectory

OPTIONS: Mapping[type[Loaded], tuple[str, ...]] = {
    LoadedText: ("text", "site"),
    LoadedTranslator: ("text", "site"),
    LoadedCaptioner: ("images", "text", "site"),
    LoadedImageModel: ("images",),
}
"""The kinds of models that are observed, with the options that each takes."""


@dataclass(frozen=True)
class Request:
    """The user's request: the text, sentence or caption that the network reads; the site whose channel-wise gates
    are drawn; numbers of images; how much of the training is drawn. None is the default."""

    text: str | None = None
    site: str | None = None
    images: Sequence[int] | None = None
    epochs: float = 5


@dataclass
class Subject:
    """Networks by row: finished runs, whose checkpoints are loaded when a figure needs them, or one loaded model."""

    request: Request = field(default_factory=Request)
    runs: Mapping[str, RunDirectory] = field(default_factory=dict)
    loaded: Any = None

    @cached_property
    def models(self) -> Mapping[str, Any]:
        """The loaded models by row. Raises `UserError` where a checkpoint cannot be read."""
        if self.loaded is not None:
            return {self.loaded.name: self.loaded}
        return {row: load(run.path, Loaded) for row, run in self.runs.items()}

    @cached_property
    def model(self) -> Any:
        """The only model."""
        (model,) = self.models.values()
        return model

    @property
    def is_image_classifier(self) -> bool:
        """Whether the model classifies images; else it is a network of tokens."""
        return isinstance(self.model, LoadedImageModel)

    @cached_property
    def has_token_gates(self) -> bool:
        """Whether it is a network of tokens that has gates at any site."""
        return not self.is_image_classifier and bool(gate_carriers(self.model))

    @cached_property
    def observation(self) -> Observation:
        """Inputs of a network of tokens. Raises `UserError` where it cannot read what was asked for."""
        model, request = self.model, self.request
        if isinstance(model, LoadedText):
            return Observation({"text": tokens_of(model, request.text)})
        if isinstance(model, LoadedTranslator):
            return observed_pair(model, request.text)
        number, *others = request.images or [0]
        if others:
            raise UserError(f"--images: {model.name} is observed on one image at a time", f"Give --images {number},")
        return observed_image(model, number, request.text)

    @cached_property
    def gates(self) -> list[SiteValues]:
        """Values of the gates of a network of tokens; none where it has no gates."""
        return observed_gates(self.model, self.observation) if self.has_token_gates else []

    @cached_property
    def validation_images(self) -> WatchedImages:
        """The validation images of an image classifier. Raises `UserError` (see `WatchedImages`)."""
        return WatchedImages(self.model, "validation")
