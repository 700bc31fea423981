"""The settings of a captioner, an encoder-decoder that reads the regions of an image, and of a run of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from comt_cli.data.captions.settings import CaptionData
from comt_cli.recipe.settings import RunSettings, WholeNumber
from comt_cli.tasks.settings import Dropped
from comt_cli.tasks.settings.translation import MAX_BEAM, BeamSettings, DecoderTrainSettings, EncoderDecoderSettings


class CaptionerSettings(EncoderDecoderSettings):
    """An encoder-decoder over regions. A linear map with ReLU and `region_dropout` maps their vectors to the width.
    `region_positions`: `learned` adds a vector per position, for patches of a grid; `none` treats them as a set."""

    family: Literal["captioner"] = "captioner"
    region_positions: Literal["learned", "none"] = "none"
    region_dropout: Dropped = 0.5


MAX_SAMPLES = 1000


class CaptionTrainSettings(DecoderTrainSettings):
    """Training of a captioner. Batch sizes count images, each with one of its captions, which `objective:
    cross-entropy` predicts. `objective: cider` is self-critical training (Rennie et al. 2017): `samples` captions per
    image are drawn from the model, and each becomes likelier in proportion to its CIDEr-D above
    `self_critical_baseline`: that of the `greedy` caption, or the mean of the `others`. It has no dropout: captions are
    drawn from the trained network."""

    objective: Literal["cross-entropy", "cider"] = "cross-entropy"
    samples: Annotated[WholeNumber, Field(ge=1, le=MAX_SAMPLES)] | None = None
    self_critical_baseline: Literal["greedy", "others"] | None = None

    _of_cider: ClassVar[dict[str, Any]] = {"samples": 5, "self_critical_baseline": "greedy"}

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, given: Any) -> Any:
        """Store an implied value explicitly, so that giving it does not change the run id."""
        if not isinstance(given, dict) or given.get("objective") != "cider":
            return given
        return given | {key: value for key, value in cls._of_cider.items() if given.get(key) is None}

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if self.objective != "cider":
            for key in self._of_cider:
                if getattr(self, key) is not None:
                    yield f"{key}: applies to objective: cider; leave it out"
        elif self.label_smoothing:
            yield "label_smoothing: objective: cider has no labels to smooth; leave the key out"
        if self.self_critical_baseline == "others" and self.samples == 1:
            yield "samples: self_critical_baseline: others needs 2 or more"


class CaptionDecodeSettings(BeamSettings):
    """Beam search with the usual defaults for captions: five beams, no preference for long captions."""

    beam: Annotated[WholeNumber, Field(gt=0, le=MAX_BEAM)] = 5
    alpha: Annotated[float, Field(ge=0, le=10)] = 0.0


class CaptioningSettings(RunSettings):
    """Everything that decides a run of a captioner, apart from its method and its seed."""

    model: CaptionerSettings
    data: CaptionData
    train: CaptionTrainSettings
    decode: CaptionDecodeSettings = CaptionDecodeSettings()
