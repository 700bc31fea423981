"""`comt bench`: speed and memory, measured as ratios in one interleaved run, and written down."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from comt_cli.commands import completion, options
from comt_cli.commands.examples import Verb, VerbGroup
from comt_cli.errors import UserError
from comt_cli.verbs.loading import loading

if TYPE_CHECKING:
    import torch

    from comt_cli.lab.bench.record import Record
    from comt_cli.lab.bench.runner import Turns
    from comt_cli.runs.plan import RunSpec
    from comt_cli.verbs.plan import Planned

app = typer.Typer(
    cls=VerbGroup,
    help="""Measure speed and memory, as ratios of interleaved runs.

    Examples:

      comt bench all --minutes 9

      comt bench step --sizes bench --precision fp32

      comt bench kernels --sizes smoke --ops swiglu,heads
    """,
    no_args_is_help=True,
)


class Compiled(StrEnum):
    """The graph of one call of torch.compile."""

    whole = "whole"
    block = "block"


def _names(help_: str, metavar: str | None = "A,B") -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(metavar=metavar, help=help_)
    return option


_SIZES = """Networks; all that are for the device if not given. Language models: 60m, 130m, 250m, 350m, 1b as
published; of steps 60m-b64 too, on smaller batches, and residual-60m, with other residual connections. Image
classifiers: resnet18, resnet18-b64, resnet50, resnet152, resnet50-224. Translators: base, captioners: caption-base,
BERTs: bert-base. For a CPU: bench, smoke, resnet18-b32, mt-bench, caption-bench, bert-bench, residual-bench. Kernels
are those of language models, and decoding is of these and of translators."""
_VARIANTS = """Only these variants, such as plain-compiled,transponder-fused; of images window-fused, of translators and
captioners sas-eager, at 60m-b64 plain-compiled-graphs; of decoding plain-uncached."""
_PRECISIONS = """fp32, bf16-mixed, bf16-pure. If not given bf16-pure for language models and bf16-mixed for the others,
on a CPU fp32 too."""
_DTYPES = """Types of the numbers: bf16, fp32. If not given those that a recipe trains in, of kernels both, of decoding
bf16, of translators fp32, as comt translate has it."""
_RECIPE = """At the shapes of a recipe of language models, instead of --sizes; with the gates that --gates names, r = 2
and r = 8, whatever the recipe's are."""
_BATCH = "Batch sizes: texts that are written at once. 1,4,16,64 if not given, of translators 1,16."
_COMPILE = """What torch.compile sees at once: the whole model, or a block, whose code all blocks share (quicker to
compile where there are many)."""
_TUNE = "On an NVIDIA GPU: find the fastest tiles of each kernel first; go on where it was stopped."
_GEMM = "Time the model's matrix products with and without columns for gates, and nothing else."
_MINUTES = "--seconds, by the minute; of all 9, with --tune 3 if neither is given."

Sizes = Annotated[str | None, _names(_SIZES)]
Variants = Annotated[str | None, _names(_VARIANTS)]
Precisions = Annotated[str | None, _names(_PRECISIONS)]
Dtypes = Annotated[str | None, _names(_DTYPES)]
Ops = Annotated[str | None, _names("Only these: heads, swiglu, add_norm, modulate, projection.")]
Gates = Annotated[str | None, _names("Only these kinds of gates: none, comt-r2, transponder-r8.")]
Batch = Annotated[str | None, _names(_BATCH, "1,4")]
Compile = Annotated[Compiled, typer.Option("--compile", help=_COMPILE)]
Tune = Annotated[bool, typer.Option("--tune", help=_TUNE)]
Gemm = Annotated[bool, typer.Option("--gemm", help=_GEMM)]
Recipe = Annotated[str | None, typer.Option(metavar="RECIPE", help=_RECIPE, autocompletion=completion.recipes)]
Scale = Annotated[
    str | None,
    typer.Option(help="Of --recipe: small if not given.", autocompletion=completion.scales, show_default=False),
]
Minutes = Annotated[float | None, typer.Option(min=0, help=_MINUTES, show_default=False)]
Rounds = Annotated[
    int,
    typer.Option(
        min=3,
        help="Rounds; each times every variant once. Up to as many more follow until the times have settled. "
        "With fewer than 14 in all there is no interval, no verdict, and nothing for `kernels: auto` to go by.",
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=0,
        metavar="N",
        help="After so many, finish no round but a first one, and begin nothing: what whole rounds have measured is "
        "written, as not settled, and what is left out is said. Ctrl-C ends a first round too, without a result.",
    ),
]


@app.command(cls=Verb)
def step(
    sizes: Sizes = None,
    precision: Precisions = None,
    variants: Variants = None,
    rounds: Rounds = 15,
    compiled: Compile = Compiled.whole,
    seconds: Seconds = None,
    device: options.Device = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Time a training step of each network, and count its memory. That is of plain, CoMT and Transponder models beside
    transformers' LLaMA, of ResNets without and with CoMT's modulators beside torchvision's, of translators beside
    torch's and transformers', of captioners, of BERTs beside transformers', and of LLaMAs with SAS, GRC, LAuReL and
    Highway beside their own arithmetic.

    Writes bench/DEVICE/step.csv, and step-images, step-translation, step-captioning, step-bert and step-residual, a
    page and a figure of each. A run replaces an earlier one of the same size and precision that has no other variants;
    otherwise it is shown and not written. For `kernels: auto` on this machine steps of ResNets are added to the cache
    folder in any case. Where a batch does not fit on a GPU, a smaller one is taken, for all variants. The rows of any
    recipe, such as `ours/modern`, are measured by `comt bench costs`.

    Examples:

      comt bench step --sizes 60m,130m --variants plain-compiled,plain-fused,transponder-fused

      comt bench step --sizes resnet18-b32 --precision fp32

      comt bench step --sizes mt-bench --variants plain,sas-eager,torch

      comt bench step --sizes bert-bench,caption-bench --precision fp32

      comt bench step --sizes residual-bench --compile block
    """
    from comt_cli.lab.bench.tables import SUBJECTS, check_variants, subject_of
    from comt_cli.recipe.load import select
    from comt_cli.recipe.settings import Precision

    named = None if sizes is None else select(sizes, [size for subject in SUBJECTS for size in subject.shapes], "size")
    chosen = select(variants, [name for subject in SUBJECTS for name in subject.variants], "variant")
    precisions = None if precision is None else select(precision, get_args(Precision), "precision")
    check_variants({size: subject_of(size).variants_of(size) for size in named or ()}, chosen)
    where, record = _begin(device, results)
    from comt_cli.lab.bench.runner import run_cases
    from comt_cli.lab.bench.step import step_cases

    peers_needed = variants is not None
    cases = step_cases(where, named, precisions, chosen, compiled.value, peers_needed=peers_needed)
    with _turns(record, rounds, seconds) as turns:
        record.add(run_cases(cases, turns))


@app.command(cls=Verb)
def kernels(
    sizes: Sizes = None,
    ops: Ops = None,
    gates: Gates = None,
    dtypes: Dtypes = None,
    rounds: Rounds = 30,
    gemm: Gemm = False,
    tune: Tune = False,
    recipe: Recipe = None,
    scale: Scale = None,
    minutes: Minutes = None,
    seconds: Seconds = None,
    device: options.Device = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Time each gated operation in PyTorch, compiled, and fused. By these times `kernels: auto` chooses.

    Writes bench/DEVICE/kernels.csv, a page and a figure. A run replaces an earlier one of the same operation that has
    no other gates; otherwise it is shown and not written. For `kernels: auto` on this machine it is added to the cache
    folder in any case, and comes before what was measured elsewhere.

    With --tune nothing is measured again that the cache folder has of this card with these kernels, PyTorch and Triton.

    Examples:

      comt bench kernels --sizes 60m --ops swiglu,heads --dtypes bf16

      comt bench kernels --tune --recipe table3.yaml --scale paper --minutes 3
    """
    from comt_cli.lab.bench.tables import DTYPES, GATES, LANGUAGE, OPS, of_run
    from comt_cli.recipe.load import select

    if gemm and (ops is not None or gates is not None):
        raise UserError("--gemm times products alone, of all kinds of gates", "Leave --ops and --gates out.")
    if gemm and tune:
        raise UserError("--gemm times products, which have no tiles to tune", "Leave --gemm or --tune out.")
    if recipe is not None and sizes is not None:
        raise UserError("--recipe and --sizes both say at which shapes", "Leave one of them out.")
    if scale is not None and recipe is None:
        raise UserError("--scale says at which shapes of a recipe, and none is given", "Add --recipe, or use --sizes.")
    limit = _limit(seconds, minutes, 180 if tune else math.inf)
    planned = [] if recipe is None else _language_runs(recipe, scale or "small")
    named = None if sizes is None else select(sizes, LANGUAGE.shapes, "size")
    trained = ["fp32" if spec.settings.train.precision == "fp32" else "bf16" for spec in planned]
    types = select(dtypes, DTYPES, "type") if dtypes or not trained else [*dict.fromkeys(trained)]
    kinds, operations = select(gates, GATES, "kind of gates"), select(ops, OPS, "operation")
    where, record = _begin(device, results)
    from comt_cli.lab.bench.kernels import kernel_cases, product_cases
    from comt_cli.lab.bench.runner import run_cases
    from comt_cli.lab.bench.tuning import run_tuning, to_tune

    if tune and where.type != "cuda":
        raise UserError(
            f"--tune is for NVIDIA GPUs, whose kernels have tiles, and this device is {where.type}",
            "Without it comt bench kernels measures the kernels of a CPU.",
        )
    usual = LANGUAGE.gpu_sizes if where.type == "cuda" else ("bench", "smoke")
    shapes = [LANGUAGE.shapes[size] for size in named or usual]
    if planned:
        shapes = [*{str(shape): shape for shape in map(of_run, planned)}.values()]
    todo = to_tune(shapes, operations, kinds, types, where) if tune else []
    if tune and not todo:
        typer.echo("all that kernels take here has been measured on this card, with these kernels and versions")
        return
    with _turns(record, rounds, limit) as turns:
        if tune:
            record.add(run_tuning(todo, where, turns))
        elif gemm:
            record.add(run_cases(product_cases(shapes, types, where), turns))
        else:
            record.add(run_cases(kernel_cases(shapes, operations, kinds, types, where), turns))


@app.command(cls=Verb)
def decode(
    sizes: Sizes = None,
    batch: Batch = None,
    variants: Variants = None,
    dtypes: Dtypes = None,
    rounds: Rounds = 15,
    seconds: Seconds = None,
    device: options.Device = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Time how models decode. That is a step with a key-value cache, the reading of a prompt of 512 tokens, and whole
    translations by beam search, with and without a cache, beside transformers'.

    Writes bench/DEVICE/decode.csv and decode-translation.csv, and a page of each. A run replaces an earlier one of the
    same batch size that has no other variants; otherwise it is shown and not written.

    Examples:

      comt bench decode --sizes 60m --batch 1,64

      comt bench decode --sizes mt-bench --variants plain,plain-uncached
    """
    from comt_cli.lab.bench.tables import DECODED, DTYPES, check_variants
    from comt_cli.recipe.load import select

    of_sizes = {size: each.variants for each in DECODED.values() for size in each.subject.shapes}
    named = None if sizes is None else select(sizes, of_sizes, "size")
    chosen = select(variants, dict.fromkeys(name for each in DECODED.values() for name in each.variants), "variant")
    types = None if dtypes is None else select(dtypes, DTYPES, "type")
    batches = None if batch is None else _batches(batch)
    check_variants({size: of_sizes[size] for size in named or ()}, chosen)
    where, record = _begin(device, results)
    from comt_cli.lab.bench.decode import decoding_cases
    from comt_cli.lab.bench.runner import run_cases

    with _turns(record, rounds, seconds) as turns:
        for each in DECODED.values():
            wanted = named or each.subject.default_sizes(where.type)
            of_each = [size for size in wanted if size in each.subject.shapes]
            record.add(run_cases(decoding_cases(each, of_each, chosen, types, batches, where), turns))


@app.command(cls=Verb)
def costs(
    recipe: options.RecipeArgument,
    scale: options.Scale = "smoke",
    rows: options.Rows = None,
    columns: options.Columns = None,
    set_: options.Set = None,
    also: options.Also = None,
    rounds: Rounds = 15,
    seconds: Seconds = None,
    device: options.Device = None,
    results: options.Results = options.DEFAULT_RESULTS,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what another device has measured.")] = False,
) -> None:
    """Measure what a training step of every row costs. Of a recipe, beside its baseline's: FLOPs, bytes, memory, time.

    Writes SCALE/PAPER/NAME-costs.csv and a page; the recipe's table, when it is written next to them, has columns of
    them. Steps are timed in turns, as the recipe trains them and compiled; a baseline that was not chosen is measured,
    too. Rows that were measured before beside the same baseline on this device stay. Rates play no part.

    Examples:

      comt bench costs ours/modern --scale evening --results results

      comt bench costs table3.yaml --rows pre-ln+comt
    """
    planned = _with_baseline(recipe, scale, rows, columns, set_, also)
    loading("PyTorch and the benchmarks", device)
    from comt_cli.lab.bench.costs import measure_recipe
    from comt_cli.training.devices import pick_device

    measure_recipe(planned, pick_device(device), rounds, seconds, results, overwrite=overwrite)


@app.command(cls=Verb)
def page(results: options.Results = options.DEFAULT_RESULTS) -> None:
    """Write all pages and figures anew from the measured CSVs. Goals are as they are today. Measures nothing.

    Example:

      comt bench page
    """
    from comt_cli.lab.bench.record import pages, renew_page
    from comt_cli.report.terminal import say_written

    folder = results / "bench"
    there = folder.is_dir() and any(folder.iterdir())  # since Python 3.13 glob hides a folder that may not be read
    found = {path: page for name, page in pages().items() for path in folder.glob(f"*/{name}.csv")} if there else {}
    if not found:
        raise UserError(f"nothing has been measured in {folder}", "comt bench all measures.")
    for path, kind in sorted(found.items(), key=lambda item: item[0]):
        try:
            problem, written = "of an older version", renew_page(kind, path)
        except (UserError, KeyError, ValueError) as error:
            problem, written = f"damaged ({error})", []
        if not written:
            typer.echo(f"{path}: {problem}, left as it is", err=True)
        say_written(written)


@app.command("all", cls=Verb)
def everything(
    minutes: Minutes = None,
    rounds: Rounds = 15,
    seconds: Seconds = None,
    device: options.Device = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Measure everything on a CPU, the most wanted first. What the minutes do not allow is left out.
    `make bench` calls it.

    No part begins that is not likely to end in time. What was measured is written after each, so that stopping early
    loses little. How far the minutes are likely to reach is said first: all goals take about 31 on two cores. A GPU
    is what comt bench gpu measures.

    Example:

      comt bench all --minutes 9
    """
    limit = _limit(seconds, minutes, 540)
    where, record = _begin(device, results)
    from comt_cli.lab.bench.stages import reach, run_stages, stages_for

    if where.type == "cuda":
        raise UserError("comt bench all is for a CPU", "On a GPU comt bench gpu measures (make gpu); or: --device cpu.")
    stages = stages_for(where)
    typer.echo(reach(stages, limit), err=True)
    with _turns(record, rounds, limit) as turns:
        record.add(run_stages(stages, turns), quiet=True)


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

    When the minutes are up, a part is ended and keeps what it has. The same command goes on where the last one stopped;
    18 minutes are meant to do for all but the last parts, which add transformers' network. What was measured is printed
    beside its goals; FOLDER/gpu.tar.gz holds all there is to keep. Without a GPU: small training steps, decoding and
    Table 3 at scale smoke, on the CPU.

    Example:

      comt bench gpu --minutes 9
    """
    from comt_cli.training.hardware import cuda_names

    names = cuda_names()  # before PyTorch is there, which would take memory on the device
    loading("PyTorch")
    from comt_cli.lab.bench.gpu import measure_parts

    measure_parts(folder.resolve(), minutes, names)


def _begin(device: str | None, results: Path) -> tuple[torch.device, Record]:
    """Import PyTorch; the device to measure on, and the record of what is measured."""
    loading("PyTorch and the benchmarks", device)
    from comt_cli.lab.bench.record import Record
    from comt_cli.training.devices import pick_device

    return pick_device(device), Record(results)


@contextmanager
def _turns(record: Record, rounds: int, seconds: float | None) -> Iterator[Turns]:
    """So many rounds until so many seconds from now, or until a signal comes."""
    from comt_cli.lab.bench.runner import Turns, measuring

    with measuring(record.outcome, seconds) as deadline:
        yield Turns(rounds, deadline)


def _limit(seconds: float | None, minutes: float | None, usual: float) -> float:
    if minutes is not None and seconds is not None:
        raise UserError("--minutes and --seconds limit the same", "Leave one of them out.")
    if minutes is not None:
        return 60 * minutes
    return usual if seconds is None else seconds


def _language_runs(recipe: str, scale: str) -> list[RunSpec]:
    """The runs of a recipe at a scale. Raises `UserError` where they are not of language models."""
    from comt_cli.verbs.plan import plan_recipe

    planned = plan_recipe(recipe, scale)
    if any(spec.command != "train-lm" for spec in planned.specs):
        said = f"{planned.loaded.name} trains no language models, at whose shapes kernels are timed"
        raise UserError(said, "comt recipes lists those that do.")
    return planned.specs


def _with_baseline(
    recipe: str, scale: str, rows: str | None, columns: str | None, set_: list[str] | None, also: list[str] | None
) -> Planned:
    """The runs of a recipe that are selected, and those of its baseline. Raises `UserError` where they cannot be
    measured."""
    from comt_cli.verbs.plan import also_rows, plan_loaded, plan_recipe

    planned = plan_recipe(recipe, scale, set_, rows=rows, columns=columns, also=also_rows(also))
    loaded, baseline = planned.loaded, planned.loaded.recipe.baseline
    if loaded.recipe.figure is not None:
        raise UserError(f"{loaded.name} is a figure, which has no rows to compare", "comt recipes lists the tables.")
    if loaded.recipe.command == "finetune" or any(spec.start is not None for spec in planned.specs):
        hint = "Measure the recipe of those: the networks are the same."
        raise UserError(f"{loaded.name}: its runs start from trained weights", hint)
    if rows is not None and baseline not in {spec.row for spec in planned.specs}:
        planned = plan_loaded(loaded, scale, rows=f"{baseline},{rows}", columns=columns)
    return planned


def _batches(text: str) -> list[int]:
    try:
        batches = [int(part) for part in text.split(",")]
    except ValueError:
        batches = [0]
    if min(batches) < 1:
        raise UserError(f"--batch {text}: batch sizes are whole numbers from 1", "For instance --batch 1,16.")
    return batches
