"""A recipe that is a figure of its paper: the run that it is drawn from, its place, and whether it is there."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.run_directory import RunDirectory, RunState
from comt_cli.report.collect import Run, collect
from comt_cli.report.write import place

KINDS = ("png", "pdf", "csv")


@dataclass(frozen=True)
class RecipeFigure:
    """The run that is drawn (the baseline's, first column, first seed) and the figure's place.

    Beside the figure lies `<stem>-runs.csv`, as beside a table: the run that it was drawn from.
    """

    run: Run
    directory: RunDirectory
    folder: Path
    stem: str

    @property
    def files(self) -> list[Path]:
        """The picture, the page and the numbers."""
        return [self.folder / f"{self.stem}.{kind}" for kind in KINDS]

    @property
    def runs_csv(self) -> Path:
        """The run behind the figure."""
        return self.folder / f"{self.stem}-runs.csv"

    @property
    def is_there(self) -> bool:
        """Whether all its files are."""
        return all(path.exists() for path in (*self.files, self.runs_csv))

    @property
    def is_fresh(self) -> bool:
        """Whether the files are there, were drawn from this very run, and are not older than its checkpoint.

        A checkpoint that was thrown away cannot be newer. A clone dates committed figures to the moment of cloning:
        they count as fresh only where the run's identity is theirs too.
        """
        if not self.is_there or self.drawn_from != self.run.spec.id:
            return False
        checkpoint = self.directory.checkpoint_file
        if not checkpoint.exists():
            return True
        return min(path.stat().st_mtime for path in self.files) >= checkpoint.stat().st_mtime

    @property
    def drawn_from(self) -> str | None:
        """The id of the run that the files were drawn from; None where that is not told."""
        return self._drawn_run().get("id")

    @property
    def is_of_another_selection(self) -> bool:
        """Whether the files show another column or seed than this run's: chosen on the command line, then or now."""
        drawn = self._drawn_run()
        return (drawn.get("column"), drawn.get("seed")) != (self.run.spec.column, str(self.run.spec.seed))

    def _drawn_run(self) -> dict[str, str]:
        """The line of the run that the files were drawn from; empty where that is not told."""
        try:
            text = self.runs_csv.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return {}
        return next(csv.DictReader(io.StringIO(text)), {})

    @property
    def undrawable(self) -> str | None:
        """Why there is nothing to draw from; None if there is."""
        spec = self.run.spec
        who = f"{spec.row}, {spec.column}, seed {spec.seed}"
        if self.run.problem:
            return self.run.problem
        if self.run.state is not RunState.done:
            return f"its run ({who}) is {self.run.state}"
        if not self.directory.checkpoint_file.exists():
            return f"the checkpoint of its run ({who}) is gone"
        return None


def recipe_figure(loaded: LoadedRecipe, specs: Sequence[RunSpec], runs: Path, results: Path) -> RecipeFigure | None:
    """The figure of a recipe; None where the baseline is not among the selected runs."""
    spec = next((spec for spec in specs if spec.row == loaded.recipe.baseline), None)
    if spec is None:
        return None
    (run,) = collect([spec], runs).runs()
    folder, stem = place(results, spec.scale, spec.paper, spec.table)
    return RecipeFigure(run, RunDirectory.of(runs, spec), folder, stem)
