"""Tasks whose models decode sequences from sources: how these are decoded, the section `decode` of a run's settings,
and how such models learn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from comt_cli.recipe.settings import MAX_LENGTH, Section, WholeNumber
from comt_cli.tasks.settings.adam import AdamSettings

MAX_BEAM = 1000


class BeamSettings(Section):
    """Beam search. `beam` is the number of live hypotheses (1: greedy), `penalty` and `alpha` what log-probabilities
    are divided by (`generation.beam.PENALTIES`)."""

    beam: Annotated[WholeNumber, Field(gt=0, le=MAX_BEAM)] = 4
    alpha: Annotated[float, Field(ge=0, le=10)] = 0.6  # beyond that scores leave what a float can hold
    penalty: Literal["gnmt", "average"] = "gnmt"


class DecodeSettings(BeamSettings):
    """Beam search, where a target has at most `max_extra` tokens more than its source."""

    max_extra: Annotated[WholeNumber, Field(ge=0, le=MAX_LENGTH)] = 50


class DecoderTrainSettings(AdamSettings):
    """How an encoder-decoder learns: by the schedule and with the Adam of Vaswani et al. unless it is said."""

    learning_rate: PositiveFloat = 6.99e-4
    schedule: Literal["cosine", "linear", "noam", "constant"] = "noam"
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    epsilon: PositiveFloat = 1e-9
    label_smoothing: Annotated[float, Field(ge=0, le=0.9)] = 0.0

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if self.compile:
            yield "compile: every batch has another shape, and each would be compiled anew; leave it out"
        if self.sharding == "fsdp":
            yield "sharding: beam search steps as often as its sentences need, which shards cannot follow; leave it out"
