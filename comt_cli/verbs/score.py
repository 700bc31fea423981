"""`comt score`: scores of translations in files, or of the translations that finished runs wrote. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from comt_cli.commands import completion, options
from comt_cli.commands.options import OfRuns
from comt_cli.data.pairs.settings import PairTexts
from comt_cli.data.prepare import prepare
from comt_cli.errors import UserError
from comt_cli.recipe.problems import nearest
from comt_cli.runs.directory import FEW, RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.scoring import metrics
from comt_cli.scoring.metrics import METRICS, read_aligned
from comt_cli.tasks.settings.translation import TranslationSettings
from comt_cli.verbs.select import is_selector, model_source
from comt_cli.words import plural

_SCORED = f"A file with one translation per line; or a finished run: a run directory, {options.SELECTOR}."
_METRICS = "bleu, bleu_tokenised, bleu_intl, bleu_intl_lc, bleu_compound, chrf; several with commas."
_METRIC_NAMES = completion.listed("scoring.metrics", "METRICS")
_AGAINST = "Also test the difference to this file; for a run: to another run, or to copy or nearest (source)."


def score(
    hypotheses: Annotated[str, options.run_argument(_SCORED, "HYP")],
    references: Annotated[
        Path | None, typer.Argument(metavar="REF", help="The references for a file of translations.")
    ] = None,
    *,
    metric: Annotated[str, typer.Option(metavar="A,B", help=_METRICS, autocompletion=_METRIC_NAMES)] = "bleu,chrf",
    against: Annotated[str | None, typer.Option(metavar="HYP2", help=_AGAINST)] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Split of a run's data: test if not given; almanac also has unseen."),
    ] = None,
    as_json: options.AsJson = False,
    of: OfRuns,
) -> None:
    """Score translations with sacreBLEU. Its signature is printed next to every number.

    Files are plain text, neither tokenised nor escaped (except for bleu_tokenised). A run is scored on the translations
    that it wrote at its end. --against prints the p-value of sacreBLEU's paired bootstrap (below 0.05: rarely chance).

    Examples:
      comt score hypotheses.txt references.txt --metric bleu,bleu_compound --against baseline.txt
      comt score sas/table3:sas::1 --against sas/table3:baseline::1
    """
    names = list(dict.fromkeys(name.strip() for name in metric.split(",")))
    for name in names:
        if name not in METRICS:
            raise UserError(f"there is no metric {name!r}", nearest(name, METRICS))
    if references is not None:
        if is_selector(hypotheses, of.runs) and not Path(hypotheses).exists():
            hint = f"Leave {references} out. To compare two runs: --against RUN."
            raise UserError(f"{hypotheses} is a run, which has its own references", hint)
        if split is not None:
            raise UserError("--split is for runs, but these are files")
        paths = [Path(name) for name in (hypotheses, references, against) if name is not None]
        texts: list[Sequence[str]] = [*read_aligned(paths)]
    else:
        for given in (hypotheses, against):
            if given is not None and Path(given).is_file() and not is_selector(given, of.runs):
                raise UserError(f"{given} is a file, but no references were given", "Give them: comt score HYP REF.")
        spec, pairs, own = _translated(Path(model_source(hypotheses, of)), split or "test")
        texts = [own, pairs.references]
        if against == "copy":
            texts.append(pairs.sources)
        elif against == "nearest":
            from comt_cli.data.pairs.dataset import nearest_translations  # and numpy

            known = spec.settings_as(TranslationSettings).data.make_corpus().train()
            sources, targets = zip(*known, strict=True)
            texts.append(nearest_translations(sources, targets, pairs.sources))
        elif against is not None:
            _, other, others = _translated(Path(model_source(against, of)), split or "test")
            if (pairs.sources, pairs.references) != (other.sources, other.references):
                message = f"{hypotheses} and {against} translated different sentences"
                raise UserError(message, "Compare runs with the same data and languages.")
            texts.append(others)
    _print(texts, names, as_json=as_json)


def _print(texts: Sequence[Sequence[str]], names: Sequence[str], *, as_json: bool) -> None:
    """Print scores. `texts` are hypotheses, references and perhaps another system's hypotheses."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        if len(texts) == 2:
            one = metrics.score(name, *texts)
            found[name] = {"score": one.value, "signature": one.signature}
        else:
            own, baseline, p_value = metrics.compare(name, texts[0], texts[2], texts[1])
            values = {"score": own.value, "against": baseline.value, "difference": own.value - baseline.value}
            found[name] = {**values, "p_value": p_value, "signature": own.signature}
    if as_json:
        typer.echo(json.dumps({"sentences": len(texts[0]), **found}, indent=2))
        return
    for name, numbers in found.items():
        line = f"{name:{max(map(len, found))}}  {numbers['score']:6.2f}"
        if "against" in numbers:
            line += f"  against {numbers['against']:6.2f}: {numbers['difference']:+.2f}, p = {numbers['p_value']:.4f}"
        typer.echo(f"{line}  {numbers['signature']}")
    few = f" (fewer than {FEW}: differences may be chance)" if len(texts[0]) < FEW else ""
    typer.echo(f"comt: scored {plural(len(texts[0]), 'sentence')}{few}", err=True)
    if len(texts) > 2:
        typer.echo("comt: p covers the choice of sentences, not of seeds: other seeds may differ", err=True)


def _translated(folder: Path, split: str) -> tuple[RunSpec, PairTexts, list[str]]:
    """A run with sources, references and its final translations of a split. The data is prepared if it is not in the
    cache. Raises `UserError` if the run does not translate, has not translated yet, or was trained on other data than
    the present, or if the data has no such split."""
    spec = RunDirectory(folder).spec()
    if not isinstance(spec.settings, TranslationSettings):
        raise UserError(f"{folder} is a run of comt {spec.task.command}, which does not translate")
    dataset, data = prepare(spec.settings.data), spec.task.data_name(spec.settings)
    if dataset.content_hash != spec.data_content:
        raise UserError(
            f"{data} has changed since {folder} was trained",
            "Score its translations as files: comt score HYP REF.",
        )
    if split not in dataset.texts:
        raise UserError(f"--split: {data} has no split {split!r}: {nearest(split, dataset.texts)}")
    path = folder / "outputs" / "final" / f"{split}.txt"
    if not path.is_file():
        raise UserError(f"{folder} has not translated its {split} split yet", "A run translates it after training.")
    return spec, dataset.texts[split], read_aligned([path])[0]
