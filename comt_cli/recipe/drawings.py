"""What a figure needs of its recipe: a drawing of the recipe's command, a gate at its site, a log of gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from comt_cli.recipe.image_settings import ImageSettings
from comt_cli.recipe.names import Methods
from comt_cli.recipe.problems import KeyPath, Problem, dotted, nearest
from comt_cli.recipe.schema import DRAWINGS, AnyRecipe, Figure, RunSettings
from comt_cli.recipe.yaml_lines import Document

SHARES_OF = "sas-resnet"
"""The method whose residual connection has the shares that `residual-shares` draws."""


def undrawable(
    recipe: AnyRecipe,
    methods: Methods,
    settings: Mapping[str, Mapping[tuple[str, str], RunSettings]],
    document: Document,
) -> Iterator[Problem]:
    """Everything that keeps the recipe's figure, where it is one, from being drawn; `settings` by scale."""
    figure = recipe.figure
    if figure is None:
        return
    possible = DRAWINGS[recipe.command]
    if figure.draw not in possible:
        message = f"{figure.draw} is not drawn of what {recipe.command} trains; {nearest(figure.draw, possible)}"
        yield _problem("draw", message, document)
    elif figure.draw == "conv-gradients":
        yield from _without_log(settings, document)
    elif figure.draw == "residual-shares":
        method = methods.get(recipe.baseline)
        if method is not None and method["name"] != SHARES_OF:
            message = f"residual-shares are those of the method {SHARES_OF}; the row {recipe.baseline} has another"
            yield _problem("draw", message, document)
    yield from _site(figure, methods.get(recipe.baseline, {}), recipe, document)
    if figure.text is not None and recipe.command != "train-lm":
        yield _problem("text", "belongs to drawings of language models: an image classifier reads none", document)


def _site(figure: Figure, method: Mapping[str, object], recipe: AnyRecipe, document: Document) -> Iterator[Problem]:
    if figure.draw != "channel-gates":
        if figure.site is not None:
            yield _problem("site", f"belongs to channel-gates; {figure.draw} has no use for it", document)
        return
    if figure.site is None:
        yield _problem("site", "is missing: channel-gates are drawn of one site", document)
        return
    sites = method.get("sites")
    if isinstance(sites, list) and figure.site not in sites:
        message = f"the row {recipe.baseline} has no gate there: {figure.site!r}; {nearest(figure.site, sites)}"
        yield _problem("site", message, document)


def _without_log(
    settings: Mapping[str, Mapping[tuple[str, str], RunSettings]], document: Document
) -> Iterator[Problem]:
    """Scales and columns whose runs would not log what `conv-gradients` are drawn from."""
    for scale, cells in settings.items():
        for column in dict.fromkeys(column for _, column in cells):
            told = [cell for (_, name), cell in cells.items() if name == column]
            if any(isinstance(cell, ImageSettings) and cell.train.gradient_norms_every is None for cell in told):
                message = (
                    "conv-gradients are drawn from a log that training keeps: set train.gradient_norms_every "
                    f"(scale {scale}, column {column})"
                )
                yield _problem("draw", message, document)


def _problem(key: str, message: str, document: Document) -> Problem:
    at: KeyPath = ("figure", key)
    return Problem(dotted(at), message, document.line(at))
