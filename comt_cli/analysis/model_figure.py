"""The interface of figures of trained networks, and the networks that they share. Files in `figures/` are
discovered."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from comt_cli.analysis.images import WatchedImages
from comt_cli.analysis.observed import Observation, SiteValues, observed_gates, observed_image, observed_pair, tokens_of
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import Loaded, LoadedImageModel, LoadedText, LoadedTranslator
from comt_cli.layers.gates import gates_of
from comt_cli.report.caption import Caption
from comt_cli.report.figures import sign, write_figure
from comt_cli.report.figures.style import QUIET
from comt_cli.runs.directory import RunDirectory

MARKERS = "os^Dv"


@dataclass
class Subject:
    """Networks by row, of finished runs or one loaded model, with observations that are made once for all figures.

    Options, None for the default: `text`, the text, sentence or caption that the network reads; `site`, whose
    channel-wise gates are drawn; `image`, the number of a test image; `epochs`, the part of the training that is drawn.
    """

    runs: Mapping[str, RunDirectory] = field(default_factory=dict)
    loaded: Any = None
    text: str | None = None
    site: str | None = None
    image: int | None = None
    epochs: float = 5

    @cached_property
    def models(self) -> Mapping[str, Any]:
        """The loaded models by row. Raises `UserError`."""
        if self.loaded is not None:
            return {self.loaded.name: self.loaded}
        return {row: load(run.path, Loaded) for row, run in self.runs.items()}

    @cached_property
    def model(self) -> Any:
        """The only model."""
        return next(iter(self.models.values()))

    @property
    def is_image_classifier(self) -> bool:
        """Whether the model classifies images; otherwise it is a network of tokens."""
        return isinstance(self.model, LoadedImageModel)

    @cached_property
    def has_token_gates(self) -> bool:
        """Whether it is a network of tokens with gates."""
        return not self.is_image_classifier and bool(gates_of(self.model.model))

    @cached_property
    def observation(self) -> Observation:
        """The inputs of a network of tokens. Raises `UserError`."""
        if isinstance(self.model, LoadedText):
            return Observation({"text": tokens_of(self.model, self.text)})
        if isinstance(self.model, LoadedTranslator):
            return observed_pair(self.model, self.text)
        return observed_image(self.model, self.image or 0, self.text)

    @cached_property
    def gates(self) -> list[SiteValues]:
        """The gate values of a network of tokens; empty if it has no gates."""
        return observed_gates(self.model, self.observation) if self.has_token_gates else []

    @cached_property
    def validation_images(self) -> WatchedImages:
        """The validation images of an image classifier. Raises `UserError` (see `WatchedImages`)."""
        return WatchedImages(self.model, "validation")


class ModelFigure(ABC):
    """A figure: its numbers, its caption's sentences, and its drawing.

    Attributes:
        name: the value of a recipe's `draw` if the task allows it (`Task.drawings`), and the name of its files.
        title: the title in the caption.
        split: columns whose values divide the rows into several figures.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    split: ClassVar[tuple[str, ...]] = ()

    def suits(self, of: Subject) -> bool:
        """Whether `comt analyze-gates` draws it for this model."""
        return False

    @abstractmethod
    def frame(self, of: Subject) -> pd.DataFrame:
        """The numbers. Raises `UserError` if there are none to draw."""

    @abstractmethod
    def sentences(self, frame: pd.DataFrame) -> list[str]:
        """The caption: how to read the figure, and its main numbers."""

    @abstractmethod
    def draw(self, frame: pd.DataFrame) -> Figure:
        """Draw a frame."""

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows and columns of the CSV file."""
        return frame

    def stem(self, frame: pd.DataFrame) -> str:
        """The name of a frame's files, without extension."""
        return self.name

    def parts(self, frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
        """The frame of each figure (see `split`); none without rows."""
        if self.split and {*self.split} <= {*frame}:
            for _, own in frame.groupby([*self.split], sort=False):
                yield own.reset_index(drop=True)
        elif len(frame):
            yield frame

    def write(
        self, frame: pd.DataFrame, folder: Path, trained: str, *, said: tuple[str, ...] = (), stem: str = "",
        title: str = "",
    ) -> list[Path]:  # fmt: skip
        """Draw a frame (see `parts`) and write its files; returns them. The caption includes `trained`, and the
        sentences `said` on the input. Raises `StorageError`."""
        caption = Caption(title or self.title, trained, (*said, *self.sentences(frame)))
        figure = self.draw(frame)
        sign(figure, trained)
        return write_figure(figure, self.table(frame), folder, stem or self.stem(frame), caption)


@functools.cache
def model_figures() -> Mapping[str, ModelFigure]:
    """All figures by name."""
    package = importlib.import_module("comt_cli.analysis.figures")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return {kind.name: kind() for kind in ModelFigure.__subclasses__() if kind.__module__.startswith(package.__name__)}


def mark_groups(axes: Axes, places: Mapping[str, pd.Series]) -> None:
    """Thin lines between groups on the x-axis, given by the positions of their members, with the groups' names on
    top."""
    for name, own in places.items():
        first, last = int(own.min()), int(own.max())
        if first > 1:
            axes.axvline(first - 0.5, color=QUIET, linewidth=0.6, linestyle=(0, (4, 3)), zorder=0.5)
        axes.annotate(
            name, ((first + last) / 2, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 1),
            textcoords="offset points", ha="center", va="bottom", fontsize=6.5, color=QUIET,
        )  # fmt: skip


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most this number of items, evenly spaced, with the first and the last."""
    chosen = np.unique(np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int))
    return [items[place] for place in chosen]
