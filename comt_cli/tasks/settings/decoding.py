"""How sequences are decoded from their sources: the section `decode` of a run's settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from comt_cli.recipe.settings import MAX_LENGTH, Section, WholeNumber

MAX_BEAM = 1000


class DecodeSettings(Section):
    """Beam search. `beam` is the number of live hypotheses (1: greedy), `penalty` and `alpha` what log-probabilities
    are divided by (`generation.beam.PENALTIES`); a target has at most `max_extra` tokens more than its source."""

    beam: Annotated[WholeNumber, Field(gt=0, le=MAX_BEAM)] = 4
    alpha: Annotated[float, Field(ge=0, le=10)] = 0.6  # beyond that scores leave what a float can hold
    penalty: Literal["gnmt", "average"] = "gnmt"
    max_extra: Annotated[WholeNumber, Field(ge=0, le=MAX_LENGTH)] = 50
