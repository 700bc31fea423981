"""A recipe that is a figure of its paper: the runs that it is drawn from, its place, and whether it is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.schema import Figure
from comt_cli.report.caption import FIGURE_FILES
from comt_cli.report.collect import Run, collect
from comt_cli.report.words import of_runs
from comt_cli.report.write import lines_of, other_recipe, place
from comt_cli.runs.directory import RunDirectory, RunState
from comt_cli.runs.plan import RunSpec


@dataclass(frozen=True)
class RecipeFigure:
    """The runs that are drawn, all of the first column and the first seed, and the figure's place.

    `settings` are what the recipe asks for; `log_setting` the setting that had training log what is drawn, None where
    the trained network is; `trained` what the networks were trained on, with the settings of the command line.
    """

    loaded: LoadedRecipe
    settings: Figure
    log_setting: str | None
    trained: str
    runs: tuple[Run, ...]
    folder: Path
    stem: str

    @property
    def directories(self) -> dict[str, RunDirectory]:
        """By row, in the order of `runs`."""
        return {run.spec.row: run.directory for run in self.runs}

    @property
    def files(self) -> list[Path]:
        """The picture, the page, the caption and the numbers."""
        return [self.folder / f"{self.stem}.{kind}" for kind in FIGURE_FILES]

    @property
    def runs_csv(self) -> Path:
        """The runs behind the figure, as beside a table."""
        return self.folder / f"{self.stem}-runs.csv"

    @property
    def is_fresh(self) -> bool:
        """Whether the files are there, were drawn from these very runs, and are not older than what they drew.

        A checkpoint that was thrown away cannot be newer. A clone dates committed figures to the moment of cloning:
        they count as fresh only where the runs' identities are theirs too.
        """
        is_there = all(path.exists() for path in (*self.files, self.runs_csv))
        if not is_there or [line.get("id") for line in self._drawn()] != [run.spec.id for run in self.runs]:
            return False
        oldest = min(path.stat().st_mtime for path in self.files)
        return all(source.stat().st_mtime <= oldest for source in map(self._source, self.runs) if source.exists())

    @property
    def of_another(self) -> str | None:
        """That the files there are of another recipe, column or seed than these runs', or of more rows."""
        drawn, shown = self._drawn(), {(run.spec.column, str(run.spec.seed)) for run in self.runs}
        is_other = {(line.get("column"), line.get("seed")) for line in drawn} != shown or len(drawn) > len(self.runs)
        said = f"{self.files[0]} is of another column or seed, or of more rows"
        other = other_recipe((self.runs_csv, self.folder / f"{self.stem}.csv"), self.loaded.origin)
        return other or (said if drawn and is_other else None)

    @property
    def undrawable(self) -> str | None:
        """Why there is nothing to draw from; None if there is."""
        found = []
        for run in self.runs:
            who = f"its run ({run.spec.row}, {run.spec.column}, seed {run.spec.seed})"
            if run.problem or run.state is not RunState.done:
                found.append(run.problem or f"{who} is {run.state}")
            elif not self._source(run).exists():
                logged = f"{who} has logged no gradient norms ({self.log_setting})"
                found.append(logged if self.log_setting else f"the checkpoint of {who} is gone")
        return "; ".join(found) or None

    def _drawn(self) -> list[dict[str, str]]:
        """The lines of the runs that the files were drawn from; none where that is not known."""
        return lines_of(self.runs_csv) or []

    def _source(self, run: Run) -> Path:
        return run.directory.gradients_file if self.log_setting else run.directory.checkpoint_file


def recipe_figure(loaded: LoadedRecipe, specs: Sequence[RunSpec], runs: Path, results: Path) -> RecipeFigure | None:
    """The figure of a recipe that is one, from the selected runs (not none), of their first column and first seed.

    None where it is drawn of the baseline, which was not selected.
    """
    settings, first = loaded.recipe.figure, specs[0]
    assert settings is not None
    drawing = first.task.drawings[settings.draw]
    chosen = [spec for spec in specs if (spec.column, spec.seed) == (first.column, first.seed)
              and (drawing.of_all_rows or spec.row == loaded.recipe.baseline)]  # fmt: skip
    if not chosen:
        return None
    collection = collect(chosen, runs)
    collection.check_contents()
    trained = of_runs(chosen, loaded.changed(first.scale))
    where = place(results, first.scale, loaded.folder, loaded.outputs(first.scale))
    return RecipeFigure(loaded, settings, drawing.from_log, trained, tuple(collection.runs()), *where)
