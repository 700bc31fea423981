"""The figure of a sweep: its numbers and its caption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comt_cli.report import format
from comt_cli.report.caption import Caption
from comt_cli.report.collect import ENDED
from comt_cli.report.sweep import SweepState
from comt_cli.runs.directory import RunState

if TYPE_CHECKING:
    import pandas as pd


FAR = 4.0
"""A mean so many times worse than the best of its column is drawn at the panel's end, as a diverged one is, or in a
map in its darkest colour."""


MOST_LINES = 12
"""More rows than these cannot be told apart as lines: they are drawn as a map."""


def tried_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """What is drawn of `sweep_frame`: rows of which a trial has ended, or all, if none has."""
    tried = frame[frame.groupby("row")["ended"].transform("any")]
    return tried if len(tried) else frame


def is_map(tried: pd.DataFrame) -> bool:
    """Whether these `tried_rows` are drawn as a map."""
    return tried["row"].nunique() > MOST_LINES


def sweep_key(state: SweepState) -> str | None:
    """The key that is drawn: the only one of the grid; None where there are several."""
    keys = list(state.grid.values)
    return keys[0] if len(keys) == 1 else None


def key_in_words(key: str) -> str:
    """`learning rate` for `train.learning_rate`."""
    return key.rpartition(".")[2].replace("_", " ")


def sweep_frame(state: SweepState, key: str) -> pd.DataFrame:
    """One line a point of every cell, as `figures.draw_sweep` takes it."""
    import pandas as pd

    lines: list[dict[str, Any]] = []
    for (row, column), tuned in state.tuned.items():
        for number, tried in enumerate(tuned.tried):
            values = [value for run in tried.runs if (value := run.value(state.grid.metric)) is not None]
            lines.append(
                {
                    "column": column,
                    "row": row,
                    "value": float(tried.point[key]),
                    "mean": tried.mean,
                    "least": min(values, default=None),
                    "greatest": max(values, default=None),
                    "n": len(values),
                    "diverged": sum(run.state is RunState.diverged for run in tried.runs),
                    "ended": all(run.state in ENDED for run in tried.runs),
                    "chosen": tuned.chosen == number + 1,
                }
            )
    return pd.DataFrame(lines).astype({"mean": float, "least": float, "greatest": float})


def sweep_caption(state: SweepState, frame: pd.DataFrame, key: str, label: str) -> Caption:
    """What the figure of `sweep_frame` shows, and how to read it."""
    specs = {column: tuned.runs[0].spec for (_, column), tuned in reversed(state.tuned.items())}
    trained = {column: spec.task.network_and_data(spec.settings) for column, spec in reversed(specs.items())}
    return Caption(
        title=f"{state.loaded.recipe.title}: {label} against the {key_in_words(key)}",
        trained="; ".join(f"{column}: {said}" if len(trained) > 1 else said for column, said in trained.items()),
        reading=_reading(state, as_map=is_map(tried_rows(frame))),
        findings=tuple(state.problems.values()),
    )


def _reading(state: SweepState, *, as_map: bool) -> tuple[str, ...]:
    seeds = f"are means over trials with the seeds {format.seeds(state.grid.seeds)}"
    if as_map:
        return (
            f"Numbers {seeds}, rows in the order of their best, chosen or not",
            f"Colours are how many times worse than the best of all rows they are, the darkest {FAR:g} times or more",
            "A frame is the value that was chosen, a cross a point of which a trial diverged or has no value, and what "
            "is empty has not ended",
        )
    return (
        f"Points {seeds}, bars span them",
        "A star is the value that was chosen",
        "A cross at the end of the worse values is a point of which a trial diverged or has no value, or whose "
        f"mean is more than {FAR:g} times worse than the best",
    )
