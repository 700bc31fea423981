"""What a figure needs of its recipe: a drawing of the recipe's task, a gate at its site, a log of what is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from comt_cli.recipe.names import Methods, Settings
from comt_cli.recipe.problems import KeyPath, Problem, dotted, nearest
from comt_cli.recipe.schema import DrawingRule, Figure, Recipe, TaskOptions
from comt_cli.recipe.yaml_lines import Document


def undrawable(
    recipe: Recipe, task: TaskOptions, methods: Methods, settings: Settings, document: Document
) -> Iterator[Problem]:
    """Everything that keeps the recipe's figure, where it is one, from being drawn."""
    figure = recipe.figure
    if figure is None:
        return
    drawing = task.drawings.get(figure.draw)
    if drawing is None:
        message = f"{figure.draw} is not drawn of what {task.command} trains; {nearest(figure.draw, task.drawings)}"
        yield _problem("draw", message, document)
        return
    if drawing.from_log is not None:
        yield from _without_log(figure.draw, drawing.from_log, settings, document)
    method = methods.get(recipe.baseline)
    if drawing.of_method is not None and method is not None and method["name"] != drawing.of_method:
        message = f"{figure.draw} are those of the method {drawing.of_method}; the row {recipe.baseline} has another"
        yield _problem("draw", message, document)
    yield from _site(figure, drawing, method or {}, recipe, document)
    if figure.text is not None and not drawing.takes_text:
        yield _problem("text", f"{figure.draw} reads none; leave the key out", document)


def _site(
    figure: Figure, drawing: DrawingRule, method: Mapping[str, object], recipe: Recipe, document: Document
) -> Iterator[Problem]:
    if not drawing.takes_site:
        if figure.site is not None:
            yield _problem("site", f"{figure.draw} has no use for it; leave the key out", document)
        return
    if figure.site is None:
        yield _problem("site", f"is missing: {figure.draw} are drawn of one site", document)
        return
    sites = method.get("sites")
    if isinstance(sites, list) and figure.site not in sites:
        message = f"the row {recipe.baseline} has no gate there: {figure.site!r}; {nearest(figure.site, sites)}"
        yield _problem("site", message, document)


def _without_log(draw: str, key: str, settings: Settings, document: Document) -> Iterator[Problem]:
    """Scales and columns whose runs would not log what is drawn."""
    section, _, name = key.partition(".")
    for scale, cells in settings.items():
        for column in dict.fromkeys(column for _, column in cells):
            here = [cell for (_, of_column), cell in cells.items() if of_column == column]
            if any(getattr(getattr(cell, section), name) is None for cell in here):
                message = f"{draw} are drawn from a log that training keeps: set {key} (scale {scale}, column {column})"
                yield _problem("draw", message, document)


def _problem(key: str, message: str, document: Document) -> Problem:
    at: KeyPath = ("figure", key)
    return Problem(dotted(at), message, document.line(at))
