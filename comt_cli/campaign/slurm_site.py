"""The site file of `--slurm`: what a job of one cluster asks for. Read like a recipe: plain YAML, errors with lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, NonNegativeInt, PositiveInt, model_validator

from comt_cli.recipe.problems import Problem, RecipeError
from comt_cli.recipe.validate import validate
from comt_cli.recipe.yaml_lines import read

_TIME = re.compile(r"(?:(\d+)-)?(\d+):([0-5]\d):([0-5]\d)|(\d+)-(\d+)(?::([0-5]\d))?")
_MEMORY = re.compile(r"[1-9]\d*[KMGT]")
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_SAID: Final = re.compile(
    "account|constraint|partition|qos|time|gres|gpus(-per-(node|socket|task))?|cpus-per-task|mem|(no-)?requeue|signal|"
    "array|chdir|error|job-name|nodes|ntasks|ntasks-per-node|open-mode|output|parsable|test-only|wait|wrap"
)
"""sbatch's options that have a key of their own, and those on which `--slurm` relies: one job a run, on one node, with
its log where `comt status` looks."""


def minutes(text: str) -> int:
    """Slurm's H:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS in whole minutes, rounded up. Raises `ValueError` for anything else,
    MM:SS too: `12:00` looks like twelve hours."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time; write hours as 12:00:00, two days as 2-00, or minutes as a number")
    days, hours, minute, second, only_days, day_hours, day_minutes = (int(part or 0) for part in found.groups())
    seconds = ((days + only_days) * 24 + hours + day_hours) * 3600 + (minute + day_minutes) * 60 + second
    return -(-seconds // 60)


def _time(value: int | str) -> int | str:
    if not value or (isinstance(value, str) and not minutes(value)):
        raise ValueError("should be more than no time at all")
    return value


def _memory(value: str) -> str:
    if not _MEMORY.fullmatch(value):
        raise ValueError(f"{value!r} is not an amount of memory; write a number with its unit, for instance 32G")
    return value


def _option_names(values: dict[str, Any]) -> dict[str, Any]:
    for name in values:
        if _SAID.fullmatch(name):
            raise ValueError(f"{name} is said by a key of the site file, or decided by comt")
        if not _OPTION.fullmatch(name):
            raise ValueError(f"{name!r} is no long option of sbatch; write one without dashes, for instance mail-type")
    return values


def _one_line(value: str) -> str:
    if len(value.splitlines()) != 1:
        raise ValueError("should be one line of text")
    return value


Text = Annotated[str, AfterValidator(_one_line)]


class Site(BaseModel):
    """Resources and options of every job.

    `time` is the limit of one start of a job: minutes, or text as Slurm writes times. `warning` seconds before it the
    run stops, saves, and its job is requeued, at most `requeues` times. `cpus` and `memory` are the whole job's; `gpus`
    share every batch. `sbatch` holds further options by their long names, `true` for one without a value; `setup` the
    lines of shell that a job begins with.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    time: Annotated[PositiveInt | Text, AfterValidator(_time)]
    partition: Text | None = None
    gpus: NonNegativeInt = 0
    cpus: PositiveInt = 1
    memory: Annotated[str, AfterValidator(_memory)] | None = None
    account: Text | None = None
    qos: Text | None = None
    constraint: Text | None = None
    sbatch: Annotated[dict[str, Text | int | bool], AfterValidator(_option_names)] = {}
    setup: tuple[Text, ...] = ()
    warning: PositiveInt = 120
    requeues: NonNegativeInt = 100

    @property
    def minutes(self) -> int:
        """`time` in minutes."""
        return minutes(self.time) if isinstance(self.time, str) else self.time

    @property
    def processes(self) -> int:
        """How many processes train a run: one a GPU, one without."""
        return max(1, self.gpus)

    @model_validator(mode="after")
    def _leaves_time_to_train(self) -> Self:
        if self.warning >= self.minutes * 60:
            raise ValueError(f"warning: {self.warning} seconds are all of the time that a job has")
        return self


def read_site(path: Path) -> Site:
    """Read and check a site file. Raises `RecipeError` with everything that is wrong, each with its line."""
    document = read(path)
    problems = list(document.problems)
    if isinstance(document.data, dict):
        site = validate(Site, document.data, (), document.line, problems)
        if site is not None and not problems:
            return site
    else:
        problems.append(Problem("", "should be a group of keys, for instance time: 12:00:00", 1))
    raise RecipeError(path, problems)
