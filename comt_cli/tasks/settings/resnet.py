"""The settings of a ResNet, and the sizes that a recipe can name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from comt_cli.recipe.settings import Layers, NetworkSettings, WholeNumber


class ResNetSize(NamedTuple):
    """Block, blocks of each stage, and channels of the first stage; each stage after it has twice the channels.

    `basic` and `bottleneck` (four times as wide outside) are He et al. 2016a, `preact` is the two-layer block of 2016b.
    """

    block: Literal["basic", "bottleneck", "preact"]
    blocks: tuple[int, ...]
    width: int


RESNET_SIZES: dict[str, ResNetSize] = {
    "resnet18": ResNetSize("basic", (2, 2, 2, 2), 64),
    "resnet50": ResNetSize("bottleneck", (3, 4, 6, 3), 64),
    "resnet152": ResNetSize("bottleneck", (3, 8, 36, 3), 64),
    "preact-resnet110": ResNetSize("preact", (18, 18, 18), 16),
}

MAX_CHANNELS = 2**14
"""Of the first stage; each later one has twice as many."""


class ResNetSettings(NetworkSettings):
    """A ResNet: a named size, whose width and blocks may be overridden, and its stem."""

    sizes: ClassVar[Mapping[str, ResNetSize]] = RESNET_SIZES

    family: Literal["resnet"] = "resnet"
    size: str = "resnet18"
    stem: Literal["3x3", "7x7"] = "3x3"
    width: Annotated[WholeNumber, Field(gt=0, le=MAX_CHANNELS)] | None = None
    blocks: Annotated[tuple[Layers, ...], Field(min_length=1, max_length=5)] | None = None

    def shape(self) -> ResNetSize:
        return ResNetSize(RESNET_SIZES[self.size].block, **self._numbers(("blocks", "width")))
