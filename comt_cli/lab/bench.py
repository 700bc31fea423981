"""`comt bench`: speed and memory, measured as ratios in one interleaved run, and written down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from comt_cli.commands import options
from comt_cli.commands.options import Verb, VerbGroup
from comt_cli.errors import UserError
from comt_cli.lab import whole_numbers
from comt_cli.lab.subjects import DECODED, DTYPES, LANGUAGE, OPS, SUBJECTS, TABLES, subject_of
from comt_cli.recipe.load import select
from comt_cli.recipe.settings import Precision
from comt_cli.report.terminal import say_written
from comt_cli.verbs.models import loading
from comt_cli.verbs.plan import also_rows, plan_loaded, plan_recipe

if TYPE_CHECKING:
    import torch

    from comt_cli.lab.runner import Session

app = typer.Typer(
    cls=VerbGroup,
    help="""Measure speed and memory, as ratios of interleaved runs.

    Steps, kernels and decoding are written to bench/DEVICE of the results, a CSV and a page each. A run replaces an
    earlier one of the same sizes and types that has no other variants; otherwise it is shown and not written.

    Examples:

      comt bench all --minutes 9

      comt bench step --sizes bench --precision fp32
    """,
    no_args_is_help=True,
)


def _option(help: str, metavar: str | None = "A,B") -> Any:
    return typer.Option(metavar=metavar, help=help)


_SIZES = """Networks; all that are for the device if not given. Language models: 60m, 130m, 250m, 350m, 1b as
published, for steps also 60m-b64 and residual-60m; resnet18, resnet18-b64, resnet50, resnet152, resnet50-224; base,
caption-base, bert-base. For a CPU: bench, smoke, resnet18-b32, mt-bench, caption-bench, bert-bench, residual-bench.
Kernels and decoding are those of language models."""
_VARIANTS = """Only these variants, such as plain-compiled,transponder-fused; of images window-fused, of translators and
captioners sas-eager, at 60m-b64 plain-compiled-graphs."""
_DTYPES = "Types of the numbers: bf16, fp32. If not given both, of decoding bf16."
_TUNE = "On an NVIDIA GPU: find the fastest tiles of each kernel first; go on where it was stopped."
_ROUNDS = """Rounds; each times every variant once. Up to as many more follow until the times have settled. With fewer
than 14 in all there is no interval, and nothing for `kernels: auto` to go by."""
_MINUTES = """After so many, finish no round but a first one, and begin nothing: what whole rounds have measured is
written, as not settled, and what is left out is said. Of all 9, with --tune 3 if not given."""

Sizes = Annotated[str | None, _option(_SIZES)]
Variants = Annotated[str | None, _option(_VARIANTS)]
Dtypes = Annotated[str | None, _option(_DTYPES)]


@dataclass(frozen=True)
class How:
    """Options of all that is measured."""

    rounds: Annotated[int, typer.Option(min=3, help=_ROUNDS)] = 15
    minutes: Annotated[float | None, typer.Option(min=0, metavar="N", help=_MINUTES, show_default=False)] = None
    device: options.Device = None
    results: options.Results = options.DEFAULT_RESULTS

    def where(self) -> torch.device:
        """Import PyTorch; the device to measure on."""
        loading("PyTorch", self.device)
        from comt_cli.training.devices import pick_device

        return pick_device(self.device)

    def session(self, usual_minutes: float | None = None) -> Session:
        """So many rounds for so many minutes from now, or until a signal comes; rows go below `results`."""
        from comt_cli.lab.record import writer
        from comt_cli.lab.runner import Session

        minutes = usual_minutes if self.minutes is None else self.minutes
        return Session(self.rounds, minutes, writer(self.results))


_HOW = How()


@app.command(cls=Verb)
@options.grouped
def step(
    sizes: Sizes = None,
    precision: Annotated[
        str | None, _option("fp32, bf16-mixed, bf16-pure. If not given that of the recipes, on a CPU fp32 too.")
    ] = None,
    variants: Variants = None,
    how: How = _HOW,
) -> None:
    """Time a training step of each network, and count its memory. That is of plain, CoMT and Transponder models beside
    transformers' LLaMA, of ResNets without and with CoMT's modulators, of translators, of captioners, of BERTs, and of
    LLaMAs with other residual connections.

    Writes step.csv, step-images, step-translation, step-captioning, step-bert and step-residual. For `kernels: auto` on
    this machine steps of ResNets are added to the cache folder, too. What does not fit in a GPU's memory is left out.

    Example:

      comt bench step --sizes 60m,130m --variants plain-compiled,plain-fused,transponder-fused
    """
    every = SUBJECTS.values()
    named = None if sizes is None else select(sizes, [size for subject in every for size in subject.shapes], "size")
    chosen = select(variants, dict.fromkeys(name for subject in every for name in subject.variants), "variant")
    precisions = None if precision is None else select(precision, get_args(Precision), "precision")
    for size in named or ():
        if {*chosen}.isdisjoint(there := subject_of(size).variants_of(size)):
            raise UserError(f"--variants: {size} has none of these", f"It has {', '.join(there)}.")
    where = how.where()
    from comt_cli.lab.runner import run_cases
    from comt_cli.lab.step import step_cases

    with how.session() as session:
        run_cases(step_cases(where, named, precisions, chosen), session)


@app.command(cls=Verb)
@options.grouped
def kernels(
    sizes: Sizes = None,
    ops: Annotated[str | None, _option("Only these: heads, swiglu, add_norm, modulate.", None)] = None,
    dtypes: Dtypes = None,
    tune: Annotated[bool, typer.Option("--tune", help=_TUNE)] = False,
    how: How = _HOW,
) -> None:
    """Time each gated operation in PyTorch, compiled, and fused. By these times `kernels: auto` chooses.

    For `kernels: auto` on this machine they are added to the cache folder, too, and come before what was measured
    elsewhere. With --tune nothing is measured again that the cache folder has of this card with these kernels, PyTorch
    and Triton.

    Examples:

      comt bench kernels --sizes 60m --ops swiglu,heads --dtypes bf16

      comt bench kernels --tune --sizes 60m,1b --minutes 3
    """
    named = None if sizes is None else select(sizes, LANGUAGE.shapes, "size")
    types, operations = select(dtypes, DTYPES, "type"), select(ops, OPS, "operation")
    where = how.where()
    from comt_cli.lab.kernels import kernel_cases, run_tuning, to_tune
    from comt_cli.lab.runner import run_cases

    if tune and where.type != "cuda":
        raise UserError("--tune is for NVIDIA GPUs", "Without it a CPU's kernels are measured.")
    usual = LANGUAGE.gpu_sizes[:5] if where.type == "cuda" else ("bench", "smoke")
    shapes = [LANGUAGE.shapes[size] for size in named or usual]
    cases = kernel_cases(shapes, operations, types, where)
    if tune and not (cases := to_tune(cases)):
        typer.echo("all that kernels take here has been measured on this card, with these kernels and versions")
        return
    with how.session(3 if tune else None) as session:
        (run_tuning if tune else run_cases)(cases, session)


@app.command(cls=Verb)
@options.grouped
def decode(
    sizes: Sizes = None,
    batch: Annotated[
        str | None, _option("Batch sizes: texts that are written at once. 1,4,16,64 if not given.", "1,4")
    ] = None,
    variants: Variants = None,
    dtypes: Dtypes = None,
    how: How = _HOW,
) -> None:
    """Time how language models decode. That is a step with a key-value cache, and the reading of a prompt of 512
    tokens.

    Example:

      comt bench decode --sizes bench --batch 1,64 --variants plain,comt-fused
    """
    named = None if sizes is None else select(sizes, LANGUAGE.shapes, "size")
    chosen, types = select(variants, DECODED, "variant"), None if dtypes is None else select(dtypes, DTYPES, "type")
    batches = None if batch is None else whole_numbers(batch, "--batch")
    where = how.where()
    from comt_cli.lab.runner import run_cases
    from comt_cli.lab.step import decoding_cases

    with how.session() as session:
        run_cases(decoding_cases(named, chosen, types, batches, where), session)


@app.command(cls=Verb)
@options.grouped
def costs(
    recipe: options.RecipeArgument,
    scale: options.Scale = "smoke",
    rows: options.Rows = None,
    columns: options.Columns = None,
    set_: options.Set = None,
    also: options.Also = None,
    how: How = _HOW,
) -> None:
    """Measure what a training step of every row costs. Of a recipe, beside its baseline's: FLOPs, bytes, memory, time.

    Writes SCALE/PAPER/NAME-costs.csv and a page; the recipe's table, when it is written next to them, has columns of
    them. Steps are timed in turns, as the recipe trains them and compiled; a baseline that was not chosen is measured,
    too. Rows that were measured before beside the same baseline on this device stay. Rates play no part.

    Examples:

      comt bench costs ours/modern --scale evening --results results

      comt bench costs table3.yaml --rows pre-ln+comt
    """
    planned = plan_recipe(recipe, scale, set_, rows=rows, columns=columns, also=also_rows(also))
    loaded, baseline = planned.loaded, planned.loaded.recipe.baseline
    if loaded.recipe.figure is not None:
        raise UserError(f"{loaded.name} is a figure, which has no rows to compare", "comt recipes lists the tables.")
    if loaded.recipe.command == "finetune" or any(spec.source is not None for spec in planned.specs):
        hint = "Measure the recipe of those: the networks are the same."
        raise UserError(f"{loaded.name}: its runs start from trained weights", hint)
    if rows is not None and baseline not in {spec.row for spec in planned.specs}:
        planned = plan_loaded(loaded, scale, rows=f"{baseline},{rows}", columns=columns)
    where = how.where()
    from comt_cli.lab.costs import measure_recipe

    measure_recipe(planned, where, how.rounds, how.minutes, how.results)


@app.command(cls=Verb)
def page(results: options.Results = options.DEFAULT_RESULTS) -> None:
    """Write all pages anew from the measured CSVs. Measures nothing.

    Example:

      comt bench page
    """
    from comt_cli.lab.record import pages, renew_page

    folder = results / "bench"
    there = folder.is_dir() and any(folder.iterdir())  # since Python 3.13 glob hides a folder that may not be read
    found = {path: page for name, page in pages().items() for path in folder.glob(f"*/{name}.csv")} if there else {}
    if not found:
        raise UserError(f"nothing has been measured in {folder}", "comt bench all measures.")
    for path in sorted(found):
        say_written([renew_page(found[path], path)])


@app.command("all", cls=Verb)
@options.grouped
def everything(how: How = _HOW) -> None:
    """Measure everything on a CPU, the most wanted first. What the minutes do not allow is left out.
    `make bench` calls it.

    No part begins that is not likely to end in time. Everything takes about 31 minutes on two cores.

    Example:

      comt bench all --minutes 9
    """
    where = how.where()
    from comt_cli.lab.kernels import kernel_cases
    from comt_cli.lab.runner import OUT_OF_TIME, run_cases
    from comt_cli.lab.step import decoding_cases, step_cases

    if where.type == "cuda":
        raise UserError("comt bench all is for a CPU", "On a GPU comt bench gpu measures (make gpu); or: --device cpu.")
    with how.session(9) as session:
        for needed, kind, size, type_, *of in TABLES["all"]:
            if needed > session.left():
                session.say(f"{kind} at {size}, {type_}: {OUT_OF_TIME} (about {needed} s)")
            elif kind == "kernels":
                run_cases(kernel_cases([LANGUAGE.shapes[size]], [*OPS], [type_], where), session)
            elif kind == "step":
                wanted = of[0].split(",") if of else subject_of(size).variants_of(size)
                run_cases(step_cases(where, [size], [type_], wanted), session)
            else:
                run_cases(decoding_cases([size], [*DECODED], [type_], None, where), session)


@app.command(cls=Verb)
def gpu(
    minutes: Annotated[float, typer.Option(min=0, help="How long, in all.")] = 9,
    folder: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for what is measured, logs, runs and the state.")
    ] = Path("runs/gpu"),
) -> None:
    """Test, tune and measure on a GPU, part by part. That is exact resume, the CUDA tests, the tuning of kernels,
    training steps of 60m, 350m and 1b, decoding, and Table 3 of CoMT at scale small with its gates. What `make gpu`
    calls.

    When the minutes are up, a part is ended and keeps what it has. The same command goes on where the last one stopped.
    FOLDER/gpu.tar.gz holds all there is to keep. Without a GPU: small training steps, decoding and Table 3 at scale
    smoke, on the CPU.

    Example:

      comt bench gpu --minutes 9
    """
    from comt_cli.training.hardware import cuda_names

    names = cuda_names()  # before PyTorch is there, which would take memory on the device
    loading("PyTorch")
    from comt_cli.lab.gpu import measure_parts

    measure_parts(folder.resolve(), minutes, names)
