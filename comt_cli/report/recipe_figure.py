"""A recipe that is a figure of its paper: the runs that it is drawn from, its place, and whether it is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from comt_cli.files import Unreadable, read_csv
from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.schema import Figure
from comt_cli.report.caption import FIGURE_FILES
from comt_cli.report.collect import Run, collect
from comt_cli.report.words import of_runs
from comt_cli.report.write import other_recipe, place
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec


@dataclass(frozen=True)
class RecipeFigure:
    """The runs that are drawn, all of the first column and the first seed, and the figure's place.

    Beside the figure lies `<stem>-runs.csv`, as beside a table: the runs that it was drawn from.
    """

    loaded: LoadedRecipe
    runs: tuple[Run, ...]
    folder: Path
    stem: str

    @property
    def settings(self) -> Figure:
        """What the recipe asks for."""
        assert self.loaded.recipe.figure is not None
        return self.loaded.recipe.figure

    @property
    def log_setting(self) -> str | None:
        """The setting that had training log what is drawn; None where the trained network is drawn."""
        return self.runs[0].spec.task.drawings[self.settings.draw].from_log

    @property
    def directories(self) -> dict[str, RunDirectory]:
        """By row, in the order of `runs`."""
        return {run.spec.row: run.directory for run in self.runs}

    @property
    def trained(self) -> str:
        """What the networks in it were trained on, with the settings that were changed on the command line."""
        specs = [run.spec for run in self.runs]
        return of_runs(specs, self.loaded.changed(specs[0].scale))

    @property
    def of_another_recipe(self) -> str | None:
        """Whose files are there, where they are not this recipe's."""
        return other_recipe((self.runs_csv, self.folder / f"{self.stem}.csv"), self.loaded)

    @property
    def files(self) -> list[Path]:
        """The picture, the page, the caption and the numbers."""
        return [self.folder / f"{self.stem}.{kind}" for kind in FIGURE_FILES]

    @property
    def runs_csv(self) -> Path:
        """The runs behind the figure."""
        return self.folder / f"{self.stem}-runs.csv"

    @property
    def is_there(self) -> bool:
        """Whether all its files are."""
        return all(path.exists() for path in (*self.files, self.runs_csv))

    @property
    def is_fresh(self) -> bool:
        """Whether the files are there, were drawn from these very runs, and are not older than what they drew.

        A checkpoint that was thrown away cannot be newer. A clone dates committed figures to the moment of cloning:
        they count as fresh only where the runs' identities are theirs too.
        """
        if not self.is_there or [line.get("id") for line in self._drawn()] != [run.spec.id for run in self.runs]:
            return False
        oldest = min(path.stat().st_mtime for path in self.files)
        return all(source.stat().st_mtime <= oldest for source in map(self._source, self.runs) if source.exists())

    @property
    def is_of_another_selection(self) -> bool:
        """Whether the files show another column or seed than these runs', or more rows: chosen on the command line,
        then or now."""
        drawn = self._drawn()
        shown = {(line.get("column"), line.get("seed")) for line in drawn}
        return shown != {(run.spec.column, str(run.spec.seed)) for run in self.runs} or len(drawn) > len(self.runs)

    def _drawn(self) -> list[dict[str, str]]:
        """The lines of the runs that the files were drawn from; none where that is not known."""
        try:
            return read_csv(self.runs_csv)
        except (FileNotFoundError, Unreadable):
            return []

    def _source(self, run: Run) -> Path:
        return run.directory.gradients_file if self.log_setting else run.directory.checkpoint_file

    @property
    def undrawable(self) -> str | None:
        """Why there is nothing to draw from; None if there is."""
        return "; ".join(filter(None, map(self._obstacle, self.runs))) or None

    def _obstacle(self, run: Run) -> str | None:
        who = f"{run.spec.row}, {run.spec.column}, seed {run.spec.seed}"
        if run.problem or run.state is not RunState.done:
            return run.problem or f"its run ({who}) is {run.state}"
        if self._source(run).exists():
            return None
        if self.log_setting:
            return f"its run ({who}) has logged no gradient norms ({self.log_setting})"
        return f"the checkpoint of its run ({who}) is gone"


def recipe_figure(loaded: LoadedRecipe, specs: Sequence[RunSpec], runs: Path, results: Path) -> RecipeFigure | None:
    """The figure of a recipe that is one, from the selected runs (not none), of their first column and first seed.

    None where it is drawn of the baseline, which was not selected.
    """
    assert loaded.recipe.figure is not None
    first = specs[0]
    chosen = [spec for spec in specs if (spec.column, spec.seed) == (first.column, first.seed)]
    if not first.task.drawings[loaded.recipe.figure.draw].of_all_rows:
        chosen = [spec for spec in chosen if spec.row == loaded.recipe.baseline]
    if not chosen:
        return None
    collection = collect(chosen, runs)
    collection.check_contents()
    place_of = place(results, first.scale, loaded.folder, loaded.outputs(first.scale))
    return RecipeFigure(loaded, tuple(collection.runs()), *place_of)
