"""The site file of `--slurm`: resources and options of a cluster's jobs. Plain YAML; errors name their lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from comt_cli.recipe.problems import Problem, RecipeError, read, validate
from comt_cli.recipe.settings import Section, matching

_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?=\d+(?::\d\d){0,2}$)|(?=\d+:\d\d:\d\d$))"
    r"(?P<hours>\d+)(?::(?P<minutes>[0-5]\d)(?::(?P<seconds>[0-5]\d))?)?"
)
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_SAID: Final = re.compile(
    "account|constraint|partition|qos|time|gres|gpus(-per-(node|socket|task))?|cpus-per-task|mem|(no-)?requeue|signal|"
    "array|chdir|error|job-name|nodes|ntasks|ntasks-per-node|open-mode|output|parsable|test-only|wait|wrap"
)
"""Options of sbatch that have a key in the site file, or that `--slurm` sets itself."""


def minutes(value: object) -> object:
    """Slurm's H:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS in whole minutes, rounded up; a value that is no text is returned
    unchanged. Raises `ValueError` for other text, including MM:SS: `12:00` looks like twelve hours."""
    if not isinstance(value, str):
        return value
    found = _TIME.fullmatch(value)
    if found is None:
        raise ValueError(f"{value!r} is not a time; write hours as 12:00:00, two days as 2-00, or minutes as a number")
    days, hours, minute, second = (int(found[key] or 0) for key in ("days", "hours", "minutes", "seconds"))
    return -(-(((days * 24 + hours) * 60 + minute) * 60 + second) // 60)


def _option_names(values: dict[str, Any]) -> dict[str, Any]:
    for name in values:
        if _SAID.fullmatch(name):
            raise ValueError(f"{name} has its own key in the site file, or is set by comt")
        if not _OPTION.fullmatch(name):
            raise ValueError(f"{name!r} is not a long option of sbatch; omit the dashes, for example mail-type")
    return values


Text = Annotated[str, matching(r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+", "should be one line of text")]
Memory = Annotated[str, matching(r"[1-9]\d*[KMGT]", "is not an amount of memory; write a number and a unit: 32G")]


class Site(Section):
    """Resources and options of every run's job. `time` limits one start of it, in minutes (files may use Slurm's
    format). `warning` seconds before the limit the run stops and saves, and is requeued, at most `requeues` times.
    `gpus`, `cpus` and `memory` are those of each of its `nodes`; all GPUs share every batch. An array has at most
    `array_size` runs (None: the cluster's MaxArraySize), of which at most `at_once` run at the same time. `sbatch`
    holds further options by their long names (`true` for options without a value), `setup` the shell lines at the start
    of a job."""

    model_config = ConfigDict(strict=True)

    time: Annotated[PositiveInt, BeforeValidator(minutes)]
    partition: Text | None = None
    nodes: PositiveInt = 1
    gpus: NonNegativeInt = 0
    cpus: PositiveInt = 1
    memory: Memory | None = None
    account: Text | None = None
    qos: Text | None = None
    constraint: Text | None = None
    sbatch: Annotated[dict[str, Text | int | bool], AfterValidator(_option_names)] = Field(default_factory=dict)
    setup: tuple[Text, ...] = ()
    warning: PositiveInt = 120
    requeues: NonNegativeInt = 100
    array_size: PositiveInt | None = None
    at_once: PositiveInt | None = None

    @property
    def processes(self) -> int:
        """The number of processes per node: one per GPU, or one."""
        return max(1, self.gpus)

    @model_validator(mode="after")
    def _leaves_time_to_train(self) -> Self:
        if self.warning >= self.time * 60:
            raise ValueError(f"warning: {self.warning} seconds are not less than the time of a job")
        return self


def read_site(path: Path) -> Site:
    """Read and check a site file. Raises `RecipeError` with all problems and their lines."""
    document = read(path)
    if isinstance(document.data, dict):
        site = validate(Site, document.data, document)
        if site is not None and not document.problems:
            return site
    else:
        document.problems.append(Problem("", "should be a group of keys, for example time: 12:00:00", 1))
    raise RecipeError(path, document.problems)
