"""The bodies of the verbs that draw trained networks, and of recipes that are figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from comt_cli.analysis.model_figure import Subject, model_figures
from comt_cli.errors import UserError
from comt_cli.exchange.load import who_takes
from comt_cli.exchange.loaded import Loaded, LoadedCaptioner, LoadedImageModel, LoadedText, LoadedTranslator
from comt_cli.files import write_text
from comt_cli.methods import in_words
from comt_cli.report.figures import figure_folder, of_all, run_figure_folder
from comt_cli.report.frame import frame_csv, frame_of, run_record
from comt_cli.report.terminal import say_written
from comt_cli.report.words import of_runs
from comt_cli.report.write import RecipeFigure
from comt_cli.runs.directory import RunDirectory

_MOST_RUNS = 7
"""The number of colours that can be distinguished."""


_OPTIONS: Mapping[type[Loaded], set[str]] = {
    LoadedText: {"text", "site"},
    LoadedTranslator: {"text", "site"},
    LoadedCaptioner: {"text", "site", "image"},
    LoadedImageModel: set(),
}
"""The kinds of models that can be observed, with the options of each."""


def analyze_gates(
    loaded: Loaded, text: str | None, site: str | None, image: int | None, *, out: Path | None, results: Path
) -> None:
    """Draw every figure that suits a model, once all numbers are computed. Raises `UserError` if there is nothing to
    draw, or not what the options ask for."""
    takes = next((own for kind, own in _OPTIONS.items() if isinstance(loaded, kind)), None)
    if takes is None:
        raise UserError(f"{loaded.name} is {loaded.kind()}, whose gates are not drawn", who_takes(loaded.run.task))
    given = {"text": text, "site": site, "image": image}
    if wrong := [option for option in given.keys() - takes if given[option] is not None]:
        raise UserError(f"--{min(wrong)}: {loaded.name} is {loaded.kind()}, which takes no such option")
    of = Subject(loaded=loaded, text=text, site=site, image=image)
    figures = [figure for figure in model_figures().values() if figure.suits(of)]
    if figures and site is not None and not of.has_token_gates:
        raise UserError(f"--site {site}: {loaded.name} has no gates on projections or branches")
    parts = [(figure, part) for figure in figures for part in figure.parts(figure.frame(of))]
    if not parts:
        raise UserError(f"{loaded.name} has no gates to analyse: it holds {loaded.description}")
    folder, trained = figure_folder(loaded.name, loaded.spec, out, results), _trained(loaded)
    said = () if of.is_image_classifier else of.observation.said
    for figure, part in parts:
        say_written(figure.write(part, folder, trained, said=said))


def plot_cosine(loaded: LoadedText, text: str | None, *, out: Path | None, results: Path) -> None:
    """Draw the residual stream of a model. Raises as `analyze_gates`."""
    figure = model_figures()["residual-stream"]
    frame = figure.frame(Subject(loaded=loaded, text=text))
    folder = figure_folder(loaded.name, loaded.spec, out, results)
    say_written(figure.write(frame, folder, _trained(loaded)))
    means = figure.table(frame)[["cosine", "angle", "norm_ratio"]].mean()
    print(
        f"{loaded.name}, mean over tokens and layers: cosine {means['cosine']:.3f}, angular distance "
        f"{means['angle']:.3f}, norm ratio {means['norm_ratio']:.3f}"
    )


def plot_gradients(directories: Sequence[RunDirectory], epochs: float, *, out: Path | None, results: Path) -> None:
    """Draw the logged gradients of runs: of one run among its figures, of several under a name that depends on all of
    them in any order. They are labelled by row, column, seed and method, or by their ids if these are equal; duplicate
    runs are drawn once. Raises as `analyze_gates`."""
    found: dict[str, RunDirectory] = {}
    for run in directories:
        found.setdefault(run.spec().id, run)
    if len(found) > _MOST_RUNS:
        raise UserError(f"{len(found)} runs are more than one figure can show", f"Give {_MOST_RUNS} or fewer.")
    specs = {key: run.spec() for key, run in found.items()}
    labels = {key: f"{each.row}-{each.column}-seed{each.seed} ({each.method_words})" for key, each in specs.items()}
    names = list(labels.values())
    runs = {label if names.count(label) == 1 else f"{label} {key}": found[key] for key, label in labels.items()}
    figure = model_figures()["conv-gradients"]
    frame = figure.frame(Subject(runs, epochs=epochs))
    own, stem = run_figure_folder(next(iter(specs.values())), results), figure.name
    if len(specs) > 1:
        own, stem = own.parent, f"{stem}-of-{len(specs)}-runs-{of_all(specs)}"
    say_written(figure.write(frame, out or own, of_runs(specs.values()), stem=stem))


def draw_recipe(of: RecipeFigure) -> list[Path]:
    """Draw a recipe's figure from its runs, and write its files and the list of these runs; returns the files. Raises
    `UserError` if a checkpoint cannot be read, or has no such gates."""
    settings = of.loaded.recipe.figure
    assert settings is not None
    figure = model_figures()[settings.draw]
    runs = {run.spec.row: run.directory for run in of.runs}
    frame = figure.frame(Subject(runs, text=settings.text, site=settings.site))
    if frame.empty:
        raise UserError(f"the runs of {of.loaded.name} have no values for draw: {settings.draw}")
    written = figure.write(frame, of.path.parent, of.trained, stem=of.path.name, title=of.loaded.recipe.title)
    # Last, since it records the runs and the recipe of the others.
    write_text(of.runs_csv, frame_csv(frame_of(run_record(run, of.loaded.origin) for run in of.runs)))
    return [*written, of.runs_csv]


def _trained(loaded: Loaded) -> str:
    """The caption's text on the network: the run with learning rate and method, or the facts known of a foreign
    model."""
    spec = loaded.spec
    if spec is None:
        return f"{loaded.name}: {loaded.description}"
    return f"{of_runs([spec])}; learning rate {spec.settings.train.learning_rate:g}, {in_words(spec.method)}"
