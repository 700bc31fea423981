"""How a sequence is decoded: the keys that tasks with beam search share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from comt_cli.recipe.settings import NonNegative, Section, WholeNumber


class DecodeSettings(Section):
    """Beam search: `beam` hypotheses a sentence, of at most `max_extra` tokens more than their source has. Their
    log-probabilities are divided by the length penalty: gnmt is tensor2tensor's ((5 + length) / 6)^alpha, average is
    length^alpha."""

    beam: Annotated[WholeNumber, Field(ge=1, le=64)] = 4
    alpha: NonNegative = 0.6
    penalty: Literal["gnmt", "average"] = "gnmt"
    max_extra: Annotated[WholeNumber, Field(ge=1, le=1000)] = 50
