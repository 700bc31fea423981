"""Writes frames of runs as files: the writer of all exhibits, its protection of existing tables, and recipe figures."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.errors import StorageError
from comt_cli.files import Unreadable, make_folder, read_csv, read_text, write_text
from comt_cli.recipe.load import LoadedRecipe
from comt_cli.report import format
from comt_cli.report.caption import FIGURE_FILES
from comt_cli.report.collect import Run, collect
from comt_cli.report.exhibits import Exhibit, exhibits
from comt_cli.report.exhibits.costs import with_costs
from comt_cli.report.exhibits.table import GUIDE, Table, print_table
from comt_cli.report.frame import GRID, TableInfo, cells_of, frame_csv, runs_frame
from comt_cli.report.terminal import say, say_written
from comt_cli.report.words import of_runs
from comt_cli.runs.directory import RunState
from comt_cli.runs.known import link_runs
from comt_cli.runs.plan import RunSpec

if TYPE_CHECKING:
    import pandas as pd


def place(results: Path, scale: str, loaded: LoadedRecipe, end: str) -> Path:
    """The file `<results>/<scale>/<folder>/<name><end>` of a recipe's results.

    Slashes within a name become dashes, so that a recipe, which may come from anywhere, cannot name a folder outside
    `results`.
    """
    return results / scale / loaded.folder.replace("/", "-") / f"{loaded.outputs(scale).replace('/', '-')}{end}"


def table_csv(results: Path, scale: str, loaded: LoadedRecipe) -> Path:
    """The CSV of a recipe's table. A sweep, or changed settings, have another name."""
    return place(results, scale, loaded, "-sweep.csv" if loaded.has_trials(scale) else ".csv")


def _runs_csv(csv: Path) -> Path:
    return csv.with_name(f"{csv.stem}-runs.csv")


@dataclass(frozen=True)
class Report:
    """A table: the frame of its runs, its cells, and its CSV with the other files next to it; None if nothing was
    written, with the reason in `unwritten`."""

    runs: pd.DataFrame
    cells: pd.DataFrame
    csv: Path | None
    unwritten: str | None = None


def write_report(
    loaded: LoadedRecipe, specs: Sequence[RunSpec], runs: Path, results: Path, *, overwrite: bool = False
) -> Report:
    """Make the table of a plan from the run directories below `runs` and write it below `results`.

    If no run has ended, nothing is written. Without `overwrite` a table of another recipe or sweep, or with more seeds,
    rows or columns, is not replaced.

    Raises:
        UserError: runs of one column were trained on different data.
        StorageError: a file cannot be written. Every file is whole: the old one or the new.
    """
    with contextlib.suppress(StorageError):  # read-only runs keep their links
        link_runs(specs, runs)
    frame, table = runs_frame(loaded, specs, runs), Table()
    info: TableInfo = frame.attrs["table"]
    # Changed settings may keep the networks: then the costs of the recipe's table apply.
    measured = [place(results, info.scale, each, "-costs.csv") for each in (loaded, replace(loaded, changes={}))]
    frame = with_costs(frame, measured)
    cells = table.frame(frame)
    if not any(run.result for run in frame["_run"]):
        unwritten = (
            f"No run with these settings has ended at scale {info.scale}: nothing is written. "
            "For other runs repeat the --set, --scale and --seeds of their training."
        )
        return Report(frame, cells, None, unwritten)
    csv = table_csv(results, info.scale, loaded)
    settled = [run for cell in cells_of(frame).values() if not cell.is_open for run in cell.runs]
    kept = None if overwrite else _kept(csv, info, [run.spec for run in settled if run.result is not None])
    if kept is not None:
        return Report(frame, cells, None, kept)
    make_folder(csv.parent)
    write_text(_runs_csv(csv), frame_csv(frame))  # first: a table whose runs are not named would never be replaced
    if (guide := results.resolve().parent / GUIDE).is_file():
        cells.attrs["guide"] = os.path.relpath(guide, csv.parent.resolve())
    write_exhibit(table, cells, csv.parent, csv.stem)
    return Report(frame, cells, csv)


def write_exhibits(of: str, runs: pd.DataFrame, csv: Path) -> list[Path]:
    """Write all exhibits next to the table of this CSV, of this kind of frame (`Exhibit.of`), that have something to
    show and are not up to date. Returns the written files."""
    written = []
    for exhibit in (each for kind in exhibits() if kind.of == of for each in kind.all_of(runs.attrs["table"])):
        if exhibit.name and not (frame := exhibit.frame(runs)).empty:
            written += write_exhibit(exhibit, frame, csv.parent, f"{csv.stem}-{exhibit.name}")
    return written


def write_exhibit(exhibit: Exhibit, frame: pd.DataFrame, folder: Path, stem: str, *, anew: bool = False) -> list[Path]:
    """Write the files of an exhibit: CSV, page and LaTeX of a table; PNG, PDF, caption and CSV of a figure, unless they
    are up to date and not `anew`. Returns the written files.

    Raises:
        StorageError: a file cannot be written. Every file is whole: the old one or the new.
    """
    texts = {"csv": exhibit.csv(frame), "md": exhibit.page(frame), "tex": exhibit.latex(frame)}
    if texts["md"] is None:
        caption = exhibit.caption(frame)
        if not anew and _is_drawn(folder, stem, {"csv": texts["csv"], "txt": caption.text()}):
            return []
        from comt_cli.report.figures import sign, write_figure  # which takes a second to import

        figure = exhibit.draw(frame)
        assert figure is not None
        sign(figure, caption.trained)
        return write_figure(figure, str(texts["csv"]), folder, stem, caption)
    make_folder(folder)
    found = {folder / f"{stem}.{kind}": text for kind, text in texts.items() if text is not None}
    for path, text in found.items():
        write_text(path, text)
    return list(found)


def _is_drawn(folder: Path, stem: str, texts: dict[str, Any]) -> bool:
    try:
        is_same = all(read_text(folder / f"{stem}.{kind}") == text for kind, text in texts.items())
    except (FileNotFoundError, Unreadable):
        return False
    return is_same and all((folder / f"{stem}.{kind}").exists() for kind in ("png", "pdf", "tex"))


def _kept(csv: Path, info: TableInfo, ended: Sequence[RunSpec]) -> str | None:
    lost = other_recipe((csv, _runs_csv(csv)), info.loaded.origin)
    if lost is None and ended and info.grid is not None and info.grid.seeds:  # choices change with the values tried
        first = next(iter(lines_of(csv) or ()), {})
        there = [key.removeprefix(GRID) for key in first if key.startswith(GRID)]
        if there and there != list(info.grid.values):
            lost = f"{csv} has a sweep of {format.listing(there)}"
    if lost is None and (lost := _would_be_lost(csv, ended)) is not None:
        lost += ". comt report, with the --seeds, --rows and --also of both, writes one table of all of them"
    if lost is None:
        return None
    return f"{lost}. Nothing is written: --results DIR writes this table elsewhere, --overwrite in its place."


def other_recipe(written: Iterable[Path], origin: str) -> str | None:
    """The recipe of the existing files, if it differs from `origin`; None if there are no files.

    A recipe that was moved counts as another one; its files have the old location.
    """
    for path in written:
        of = next((line["recipe"] for line in lines_of(path) or () if line.get("recipe")), None)
        if of is not None and of != origin:
            return f"{path} is of the recipe {format.one_line(of)}, not of {format.one_line(origin)}"
    return None


def _would_be_lost(csv: Path, ended: Iterable[RunSpec]) -> str | None:
    """The loss if the existing table were replaced: finished runs of a cell with seeds that `ended` lacks."""
    lines, every = lines_of(csv), lines_of(_runs_csv(csv))
    if lines is None or every is None:
        return f"{csv if lines is None else _runs_csv(csv)} cannot be read"
    here: dict[tuple[str | None, str | None], set[str]] = {}
    for spec in ended:
        here.setdefault((spec.row, spec.column), set()).add(str(spec.seed))
    seeds = {line.get("id"): line.get("seed") or "" for line in every}
    for line in lines:
        row, column = line.get("row"), line.get("column")
        there = {seeds.get(run, run) for run in (line.get("run_ids") or "").split()}
        ours = here.get((row, column), set())
        if there - ours:
            others = "" if len(there) > len(ours) else " with other seeds"
            runs = format.plural(len(there), "finished run")
            return f"{csv} has {runs} of {row} at {column}, and this table {len(ours)}{others}"
    return None


def lines_of(path: Path) -> list[dict[str, str]] | None:
    """The lines of a CSV; none if there is no file, None if it cannot be read."""
    try:
        return read_csv(path)
    except FileNotFoundError:
        return []
    except Unreadable:
        return None


def print_report(report: Report, shown: Iterable[tuple[str, str]] | None = None) -> None:
    """Print the table, or its cells in `shown`, and the paths of its files."""
    cells = report.cells
    if shown is not None:  # their numbers are those of the whole table
        rows, columns = map(set, zip(*shown, strict=True))
        part = cells[cells["row"].isin(rows) & cells["column"].isin(columns)]
        cells = part if len(part) else cells
    print_table(cells)
    if report.csv is None:
        return
    if len(cells) < len(report.cells):
        say("Only the selected rows and columns are shown; the files have all.")
    say_written([report.csv, _runs_csv(report.csv), *(report.csv.with_suffix(kind) for kind in (".md", ".tex"))])


@dataclass(frozen=True)
class RecipeFigure:
    """The runs of a figure, all of the first column and the first seed, and the figure's `path`, without a suffix.

    `log_setting` is the setting that logs the drawn values, None if the trained network is drawn; `trained` describes
    the training, with the settings of the command line.
    """

    loaded: LoadedRecipe
    log_setting: str | None
    trained: str
    runs: tuple[Run, ...]
    path: Path

    @property
    def files(self) -> list[Path]:
        """The picture, the page, the caption and the numbers."""
        return [self.path.with_name(f"{self.path.name}.{kind}") for kind in FIGURE_FILES]

    @property
    def runs_csv(self) -> Path:
        """The list of the figure's runs, as for a table."""
        return self.path.with_name(f"{self.path.name}-runs.csv")

    @property
    def is_fresh(self) -> bool:
        """Whether the files exist, and were drawn from these runs, none of which was trained again since."""
        is_there = all(path.exists() for path in (*self.files, self.runs_csv))
        if not is_there or [line.get("id") for line in self._drawn()] != [run.spec.id for run in self.runs]:
            return False
        oldest = min(path.stat().st_mtime for path in self.files)
        return all(source.stat().st_mtime <= oldest for source in map(self._source, self.runs) if source.exists())

    @property
    def of_another(self) -> str | None:
        """A message if the existing files are of another recipe, column or seed, or of more rows."""
        drawn, shown = self._drawn(), {(run.spec.column, str(run.spec.seed)) for run in self.runs}
        is_other = {(line.get("column"), line.get("seed")) for line in drawn} != shown or len(drawn) > len(self.runs)
        said = f"{self.files[0]} is of another column or seed, or of more rows"
        other = other_recipe((self.runs_csv, self.files[-1]), self.loaded.origin)
        return other or (said if drawn and is_other else None)

    @property
    def undrawable(self) -> str | None:
        """Why the figure cannot be drawn; None if it can."""
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
        return lines_of(self.runs_csv) or []

    def _source(self, run: Run) -> Path:
        return run.directory.gradients_file if self.log_setting else run.directory.checkpoint_file


def recipe_figure(loaded: LoadedRecipe, specs: Sequence[RunSpec], runs: Path, results: Path) -> RecipeFigure | None:
    """The figure of a figure recipe, from the selected runs (not none), of their first column and first seed.

    None if it shows the baseline, which was not selected.
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
    path = place(results, first.scale, loaded, "")
    return RecipeFigure(loaded, drawing.from_log, trained, tuple(collection.runs()), path)
