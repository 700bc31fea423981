"""What the verbs that decode with a trained model share: options of beam search, and the lines that they print."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar

import typer

if TYPE_CHECKING:
    from comt_cli.generation.beam import Hypothesis
    from comt_cli.tasks.settings.transformer import BeamSettings

    Decode = TypeVar("Decode", bound=BeamSettings)


class Penalty(StrEnum):
    """What log-probabilities are divided by."""

    gnmt = "gnmt"
    average = "average"


Beam = Annotated[
    int | None,
    typer.Option(min=1, max=1000, help="Hypotheses that are kept; 1 is greedy. As the run's if not given."),
]
Alpha = Annotated[
    float | None,
    typer.Option(min=0, max=10, help="How much longer texts are favoured. As the run's if not given."),
]
PenaltyOption = Annotated[
    Penalty | None,
    typer.Option(
        "--penalty", help="Divide by ((5 + length) / 6)^alpha (gnmt) or length^alpha (average). As the run's."
    ),
]
Scores = Annotated[bool, typer.Option("--scores", help="Score and log-probability before each text, with tabs.")]


class Text(Protocol):
    """What was decoded; `hypothesis` is None where there was nothing to decode."""

    @property
    def text(self) -> str: ...
    @property
    def hypothesis(self) -> Hypothesis | None: ...


def as_asked(decode: Decode, beam: int | None, alpha: float | None, penalty: Penalty | None) -> Decode:
    """How a run decodes, with what the user asks for instead."""
    given = {"beam": beam, "alpha": alpha, "penalty": None if penalty is None else penalty.value}
    return decode.model_copy(update={key: value for key, value in given.items() if value is not None})


def rows(name: str, found: Sequence[Text], n_best: int, *, scores: bool) -> list[str]:
    """The lines of output of what is called `name`: `n_best` of them, with the name before each if these are more than
    one, and empty where fewer texts were found."""
    lines = []
    for place in range(n_best):
        each = found[place] if place < len(found) else None
        hypothesis = each.hypothesis if each is not None else None
        columns = [name] if n_best > 1 else []
        if scores and hypothesis is None:
            columns += ["", ""]
        elif scores and hypothesis is not None:
            columns += [f"{hypothesis.score:.6f}", f"{hypothesis.log_probability:.6f}"]
        lines.append("\t".join([*columns, each.text if each is not None else ""]))
    return lines
