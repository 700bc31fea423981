"""`comt score`: BLEU and chrF of a file of translations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def score(
    hypotheses: Annotated[
        Path, typer.Argument(metavar="HYP", help="A file of translations, one a line.", show_default=False)
    ],
    references: Annotated[
        Path, typer.Argument(metavar="REF", help="A file of references, line by line.", show_default=False)
    ],
    metric: Annotated[
        str,
        typer.Option(
            metavar="A,B",
            help="bleu, bleu_tokenised, bleu_intl, bleu_intl_lc, bleu_compound or chrf; several with commas.",
        ),
    ] = "bleu,chrf",
    against: Annotated[
        Path | None,
        typer.Option(metavar="HYP2", help="Another file of translations: is the difference to it more than chance?"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score translations against references with sacreBLEU, and print its signature beside every number.

    The files are plain text, neither tokenised nor escaped; only bleu_tokenised takes the tokens that stand there, and
    splits at spaces alone. Numbers of different metrics, or with different signatures, cannot be compared. --against
    prints the p-value of sacreBLEU's paired bootstrap: below 0.05 a difference is rarely chance.

    Examples:

      comt score hypotheses.txt references.txt

      comt score hypotheses.txt references.txt --metric bleu,bleu_compound --against baseline.txt
    """
    from comt_cli.recipe.problems import nearest
    from comt_cli.scoring.files import read_aligned, refuse, suspicions
    from comt_cli.scoring.metrics import METRICS, compare
    from comt_cli.scoring.metrics import score as score_of

    names = [name.strip() for name in metric.split(",")]
    problems = [f"there is no metric {name!r}: {nearest(name, METRICS)}" for name in names if name not in METRICS]
    paths = [hypotheses, references, *([against] if against is not None else [])]
    texts, wrong = read_aligned(paths)
    refuse([*problems, *wrong])
    notes = [note for path, lines in zip(paths, texts, strict=True) for note in suspicions(str(path), lines)]
    if notes and not all(METRICS[name].is_of_tokens for name in names):
        for note in notes:
            typer.echo(f"comt: {note}", err=True)
        typer.echo("comt: is it tokenised? Only bleu_tokenised is for that; the other scores will be wrong", err=True)
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
    if any(numbers.get("difference") == 0 for numbers in found.values()):
        typer.echo("comt: where there is no difference, the p-value says nothing", err=True)
