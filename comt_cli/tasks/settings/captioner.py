"""The settings of a captioner: an encoder-decoder that reads the regions of an image."""

from __future__ import annotations

from typing import Literal

from comt_cli.tasks.settings.transformer import Dropped, EncoderDecoderSettings


class CaptionerSettings(EncoderDecoderSettings):
    """An encoder-decoder over regions, whose vectors a linear map with ReLU and `region_dropout` takes to the width.

    `region_positions`: `learned` adds a learned vector to each place, for patches of a grid; `none` leaves the regions
    a set, as detectors give them.
    """

    family: Literal["captioner"] = "captioner"
    region_positions: Literal["learned", "none"] = "none"
    region_dropout: Dropped = 0.5
