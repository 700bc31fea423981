"""`comt bench`: speed, measured as ratios in one interleaved run and written down."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands import options

app = typer.Typer(help="Measure speed, as ratios in one interleaved run.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `step` a sub-verb while it is the only one."""


@app.command()
def step(
    precision: Annotated[str, typer.Option(metavar="A,B", help="fp32, bf16-mixed, bf16-pure.")] = "fp32,bf16-pure",
    variants: Annotated[str | None, typer.Option(metavar="A,B", help="Only these variants.")] = None,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds; each runs every variant once.")] = 15,
    device: options.Device = None,
    results: options.Results = Path("results"),
) -> None:
    """Time a training step of plain, CoMT and Transponder models beside transformers' LLaMA.

    Writes results/bench/DEVICE/step.csv and .md; rows of an earlier measurement of the same variant are replaced.

    Example:

      comt bench step --rounds 15
    """
    from typing import get_args

    from comt_cli.recipe.load import select
    from comt_cli.recipe.settings import Precision
    from comt_cli.report.benchmark import write_step_benchmark
    from comt_cli.training.devices import pick_device
    from comt_cli.training.step_benchmark import VARIANTS, Measurement, Shape, run_step_benchmark

    chosen = select(variants, VARIANTS, "variant")
    where = pick_device(device)
    measured: list[Measurement] = []
    for name in select(precision, get_args(Precision), "precision"):
        for news in run_step_benchmark(Shape(), name, chosen, where, rounds):  # type: ignore[arg-type]
            if isinstance(news, str):
                typer.echo(news, err=True)
            else:
                measured.extend(news)
    for path, text in write_step_benchmark([vars(m) for m in measured], VARIANTS, results):
        if path.suffix == ".md":
            typer.echo(text)
        typer.echo(f"wrote {path}")
