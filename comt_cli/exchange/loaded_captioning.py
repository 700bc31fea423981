"""A trained captioner, with what is needed to show it an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from comt_cli.data.captions.settings import CaptionData
from comt_cli.exchange.loaded_decoder import LoadedDecoder
from comt_cli.models.captioner import Captioner
from comt_cli.tasks.settings.captioning import CaptioningSettings


@dataclass(frozen=True)
class LoadedCaptioner(LoadedDecoder):
    """`longest` counts the words of a caption, without its end."""

    command: ClassVar = "train-caption"

    model: Captioner

    @property
    def data(self) -> CaptionData:
        """What its images were."""
        return self.run.settings_as(CaptioningSettings).data
