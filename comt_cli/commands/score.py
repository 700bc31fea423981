"""`comt score`: BLEU and chrF of a file of translations, or of a run's."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from comt_cli.commands import completion, options


def score(
    hypotheses: Annotated[
        str,
        typer.Argument(
            metavar="HYP",
            help=f"A file of translations, one a line; or a finished run, as a run directory or {options.SELECTOR}.",
            show_default=False,
            autocompletion=completion.selectors,
        ),
    ],
    references: Annotated[
        Path | None,
        typer.Argument(
            metavar="[REF]", help="A file of references, line by line; left out for a run.", show_default=False
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="bleu, bleu_tokenised, bleu_intl, bleu_intl_lc, bleu_compound or chrf; several with commas.",
            autocompletion=completion.metrics,
        ),
    ] = "bleu,chrf",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="HYP2",
            help="Another file of translations: is the difference to it more than chance? Of a run another run, or "
            "copy (the sources themselves) or nearest (the target of the most similar training source).",
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Of a run: which of its splits; test if not given, of almanac also unseen.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    scale: options.ScaleOfRuns = None,
    set_: options.SetOfRuns = None,
    runs: options.Runs = Path("runs"),
) -> None:
    """Score translations against references with sacreBLEU. Its signature stands beside every number.

    The files are plain text, neither tokenised nor escaped; only bleu_tokenised takes the tokens that stand there, and
    splits at spaces alone. A run is scored on what it wrote when it was done. Numbers of different metrics, or with
    different signatures, cannot be compared. --against prints the p-value of sacreBLEU's paired bootstrap: below 0.05 a
    difference is rarely chance.

    Examples:

      comt score hypotheses.txt references.txt

      comt score hypotheses.txt references.txt --metric bleu,bleu_compound --against baseline.txt

      comt score sas/table3:sas::1 --against sas/table3:baseline::1

      comt score sas/table3:baseline::1 --against nearest --split unseen
    """
    from comt_cli.commands.run_selectors import is_selector, model_source
    from comt_cli.errors import UserError
    from comt_cli.recipe.problems import nearest
    from comt_cli.runs.directory import FEW
    from comt_cli.scoring.metrics import METRICS, compare
    from comt_cli.scoring.metrics import score as score_of
    from comt_cli.words import plural

    names = [name.strip() for name in metric.split(",")]
    problems = [f"there is no metric {name!r}: {nearest(name, METRICS)}" for name in names if name not in METRICS]
    if references is not None:
        if is_selector(hypotheses) and not Path(hypotheses).exists():
            raise UserError(
                f"{hypotheses} is a run, which has references of its own", "--against RUN compares two runs."
            )
        if split is not None:
            problems.append("--split is of a run, and these are files")
        is_plain = not all(METRICS[name].is_of_tokens for name in names if name in METRICS)
        texts = _of_files([hypotheses, references, against], problems, is_plain)
    else:
        source = functools.partial(model_source, runs=runs, scale=scale, set_=set_)
        texts = _of_runs(hypotheses, against, split or "test", problems, source)
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(names):
        if against is None:
            one = score_of(name, texts[0], texts[1])
            found[name] = {"score": one.value, "signature": one.signature}
        else:
            pair = compare(name, texts[0], texts[2], texts[1])
            found[name] = {
                "score": pair.score.value,
                "against": pair.baseline.value,
                "difference": pair.difference,
                "p_value": pair.p_value,
                "signature": pair.score.signature,
            }
    if as_json:
        typer.echo(json.dumps({"sentences": len(texts[0]), **found}, indent=2))
        return
    width = max(map(len, found))
    for name, numbers in found.items():
        line = f"{name:{width}}  {numbers['score']:6.2f}"
        if against is not None:
            line += f"  against {numbers['against']:6.2f}: {numbers['difference']:+.2f}, p = {numbers['p_value']:.4f}"
        typer.echo(f"{line}  {numbers['signature']}")
    few = f": fewer than {FEW}, so a difference may be chance" if len(texts[0]) < FEW else ""
    typer.echo(f"comt: of {plural(len(texts[0]), 'sentence')}{few}", err=True)
    if against is not None:
        typer.echo("comt: p is over the sentences of one translation each, not over seeds: others may differ", err=True)
    if any(numbers.get("difference") == 0 for numbers in found.values()):
        typer.echo("comt: where there is no difference, the p-value says nothing", err=True)


def _of_files(names: Sequence[str | Path | None], problems: Sequence[str], is_plain: bool) -> list[Sequence[str]]:
    """The lines of hypotheses, references and, if there is one, of the other system's hypotheses."""
    from comt_cli.scoring.files import read_aligned, refuse, suspicions

    paths = [Path(name) for name in names if name is not None]
    texts, wrong = read_aligned(paths)
    refuse([*problems, *wrong])
    notes = [note for path, lines in zip(paths, texts, strict=True) for note in suspicions(str(path), lines)]
    if notes and is_plain:
        for note in notes:
            typer.echo(f"comt: {note}", err=True)
        typer.echo("comt: is it tokenised? Only bleu_tokenised is for that; the other scores will be wrong", err=True)
    return [*texts]


def _of_runs(
    run: str, against: str | None, split: str, problems: Sequence[str], source: Callable[[str], str]
) -> list[Sequence[str]]:
    """The same of what a run translated."""
    from comt_cli.commands.run_selectors import is_selector
    from comt_cli.errors import UserError
    from comt_cli.scoring.files import refuse

    refuse(problems)
    for name in (run, against):
        if name is not None and Path(name).is_file() and not is_selector(name):
            raise UserError(f"{name} is a file: whose references are there to score it against?", "comt score HYP REF.")
    from comt_cli.commands.translated_split import BASELINES, TranslatedSplit

    own = TranslatedSplit.of(Path(source(run)), split)
    texts: list[Sequence[str]] = [own.hypotheses, own.references]
    if against is not None and against in BASELINES:
        texts.append(own.baseline(against))
    elif against is not None:
        other = TranslatedSplit.of(Path(source(against)), split)
        if not own.is_like(other):
            raise UserError(
                f"{run} and {against} translated different sentences", "Compare runs on the same data and languages."
            )
        texts.append(other.hypotheses)
    return texts
