"""A recipe at a scale, spelt out: one `RunSpec` per row, column and seed, each with its identity."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import SerializeAsAny, ValidationInfo, field_validator

from comt_cli.errors import UserError
from comt_cli.files import canonical_json, sha256
from comt_cli.recipe.load import LoadedRecipe, select
from comt_cli.recipe.problems import nearest
from comt_cli.recipe.schema import Name, ScaleName, Seed
from comt_cli.recipe.settings import RunSettings, Section
from comt_cli.tasks import Task, task_of

SPEC_VERSION = 3
"""Part of every run's identity: raised when the meaning of a setting changes, so that old runs are not mistaken."""

MAX_SEEDS = 1000

BY_ID = "by-id"
"""The folder below `runs` that holds every run once; what stands elsewhere there are links to them."""

RESULTS = "results"
"""The folder below `runs` that tables and figures are written to, unless another is named."""

S = TypeVar("S", bound=RunSettings)


class RunSpec(Section):
    """One training, fully resolved: everything that can change its numbers, and where it stands in its table.

    It is read back from files that may come from anywhere, so names are held to what a recipe may say. `paper` and
    `table` are the folder and the name that the recipe's file gives its runs (`find.place_of`).
    """

    paper: Name
    table: Name
    command: str
    scale: ScaleName
    row: Name
    column: Name
    seed: Seed
    method: dict[str, Any]
    settings: SerializeAsAny[RunSettings]
    data_fingerprint: str
    """What is asked of the data: its settings, its source, and the versions of what prepares it."""
    data_content: str | None = None
    """The hash of the tokens or pixels themselves (of ImageNet: of its files' names and sizes); None where the data is
    not prepared here."""

    @field_validator("settings", mode="before")
    @classmethod
    def _of_the_task(cls, given: Any, info: ValidationInfo) -> Any:
        """Settings in a file are those of the task that the command names."""
        if not isinstance(given, Mapping) or "command" not in info.data:
            return given
        return task_of(info.data["command"]).settings.model_validate(given)

    @property
    def task(self) -> Task[Any]:
        """What the network is trained to do."""
        return task_of(self.command)

    def settings_as(self, kind: type[S]) -> S:
        """The settings, where they are of this kind. Raises `TypeError` where they are another task's."""
        if not isinstance(self.settings, kind):
            raise TypeError(f"run {self.request} has {type(self.settings).__name__}, not {kind.__name__}")
        return self.settings

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that are part of the run's identity, as plain data."""
        return identity_of(self.settings, self.task)

    @property
    def id(self) -> str:
        """12 hex digits: the hash of everything that can change the run's numbers, and of nothing else.

        The settings of the data and its content are part of it, and the versions of what prepares it are not: a cache
        that is made anew with the same tokens or pixels serves the runs that there are. While the content is not known
        this is `request`, under which nothing is stored.
        Row, column and table are labels, so two tables that ask for the same training share its identity.
        """
        return self.request if self.data_content is None else self._hash(content=self.data_content)

    @property
    def request(self) -> str:
        """12 hex digits that are known before the data is prepared, and stay as they are afterwards."""
        return self._hash(fingerprint=self.data_fingerprint)

    def _hash(self, **data: str) -> str:
        identity = {
            "version": SPEC_VERSION,
            "command": self.command,
            "method": self.method,
            "settings": self.identity,
            "seed": self.seed,
            "data": data,
        }
        return sha256(canonical_json(identity))[:12]

    def with_content(self, content: str | None) -> RunSpec:
        """The same run on data of this content."""
        return self if content == self.data_content else self.model_copy(update={"data_content": content})

    @property
    def relative_path(self) -> Path:
        """Where people find the run: `<paper>/<table>/<row>/<column>/seed<k>-<id>`, slashes in names written as dashes.

        So a recipe, which may come from anywhere, cannot name a folder outside the runs, nor the one that holds them.
        """
        paper, *names = (name.replace("/", "-") for name in (self.paper, self.table, self.row, self.column))
        if paper.casefold() in (BY_ID, RESULTS):
            paper = f"paper-{paper}"
        return Path(paper, *names, f"seed{self.seed}-{self.id}")


def identity_of(settings: RunSettings, task: Task[Any]) -> dict[str, Any]:
    """The settings that are part of the identity of a task's run, as plain data."""
    left_out = {section: {*keys} for section, keys in task.runtime_keys.items()}
    for name in type(settings).model_fields:
        section: Section = getattr(settings, name)
        defaults = {key: type(section).model_fields[key].default for key in section.later}
        left_out.setdefault(name, set()).update(key for key in defaults if getattr(section, key) == defaults[key])
    return settings.model_dump(mode="json", exclude={name: keys for name, keys in left_out.items() if keys})


def parse_seeds(text: str | None) -> list[int] | None:
    """`1,2,3` or `1-3` as a list; None for None. Raises `UserError` for anything else."""
    if text is None:
        return None
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            seeds.extend(range(int(first), min(int(last), int(first) + MAX_SEEDS) + 1) if dash else [int(first)])
    except ValueError:
        raise UserError(f"--seeds {text}: seeds are whole numbers", "for instance 1,2,3 or 1-3") from None
    if not seeds or len(seeds) > MAX_SEEDS or min(seeds) < 0 or max(seeds) >= 2**31:
        raise UserError(
            f"--seeds {text}: give 1 to {MAX_SEEDS} seeds from 0 to 2147483647", "for instance 1,2,3 or 1-3"
        )
    return list(dict.fromkeys(seeds))


def plan(
    loaded: LoadedRecipe,
    scale: str,
    *,
    rows: str | None = None,
    columns: str | None = None,
    seeds: list[int] | None = None,
) -> list[RunSpec]:
    """Every run of the recipe at `scale`: columns outermost, then seeds, then rows, so that a table fills evenly.

    `rows` and `columns` are comma-separated selections.

    Raises:
        UserError: there is no such scale, row or column.
    """
    recipe, task = loaded.recipe, task_of(loaded.recipe.command)
    if scale not in recipe.scales:
        raise UserError(f"{loaded.path}: there is no scale {scale!r}", nearest(scale, recipe.scales))
    chosen_rows = select(rows, recipe.rows, "row")
    chosen_columns = select(columns, loaded.columns(scale), "column")
    chosen_seeds = seeds or recipe.scales[scale].seeds or recipe.seeds
    folder, stem = loaded.folder, loaded.stem
    data: dict[str, tuple[str, str | None]] = {}
    folders: dict[str, tuple[str | None, str]] = {}
    runs = []
    for column in chosen_columns:
        for seed in chosen_seeds:
            for row in chosen_rows:
                settings = loaded.settings[scale][row, column]
                key = settings.data.model_dump_json()
                if key not in data:
                    data[key] = task.identify(settings)
                fingerprint, content = data[key]
                _one_folder(loaded, folders, fingerprint, getattr(settings.data, "folder", None), f"{row} at {column}")
                runs.append(
                    RunSpec(
                        paper=folder,
                        table=stem,
                        command=recipe.command,
                        scale=scale,
                        row=row,
                        column=column,
                        seed=seed,
                        method=loaded.methods[row],
                        settings=settings,
                        data_fingerprint=fingerprint,
                        data_content=content,
                    )
                )
    return runs


def _one_folder(
    loaded: LoadedRecipe, folders: dict[str, tuple[str | None, str]], fingerprint: str, folder: str | None, cell: str
) -> None:
    """See to it that one data set is read from one folder: what lies in two is prepared, and noted, as one."""
    first, where = folders.setdefault(fingerprint, (folder, cell))
    if first != folder:
        raise UserError(
            f"{loaded.path}: {where} and {cell} read the same data from two folders, {first} and {folder}",
            "One data set is read from one folder: give data.folder once, or make two tables.",
        )
