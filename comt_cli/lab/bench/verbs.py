"""`comt bench`: speed and memory, measured as ratios in one interleaved run, and written down."""

from __future__ import annotations

import contextlib
import math
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
    from comt_cli.runs.plan import RunSpec

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
    """What one call of torch.compile sees."""

    whole = "whole"
    block = "block"


def _names(help_: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(metavar="A,B", help=help_)
    return option


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
    sizes: Annotated[
        str | None,
        _names(
            "Language models: 60m, 130m, 250m, 350m, 1b as published, 60m-b64 on smaller batches, bench, smoke, "
            "which are for a CPU. Image classifiers: resnet18, resnet18-b64, resnet50, resnet152, resnet50-224, "
            "resnet18-b32, which is for a CPU. Translators: base, captioners: caption-base, BERTs: bert-base; "
            "mt-bench, caption-bench, bert-bench are for a CPU. Residual connections of language models: residual-60m, "
            "residual-bench, which is for a CPU. All that are for the device if not given."
        ),
    ] = None,
    precision: Annotated[
        str | None,
        _names(
            "fp32, bf16-mixed, bf16-pure. If not given bf16-pure for language models and bf16-mixed for the "
            "others, on a CPU fp32 too."
        ),
    ] = None,
    variants: Annotated[
        str | None,
        _names(
            "Only these variants, such as plain-compiled,transponder-fused; window-fused for images; sas-eager "
            "for translators and captioners; plain-compiled-graphs,transponder-fused-graphs at 60m-b64."
        ),
    ] = None,
    rounds: Rounds = 15,
    compiled: Annotated[
        Compiled,
        typer.Option(
            "--compile",
            help="What torch.compile sees at once: the whole model, or a block, whose code all blocks share "
            "(quicker to compile where there are many).",
        ),
    ] = Compiled.whole,
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
    from comt_cli.lab.bench.subjects import SUBJECTS, check_variants
    from comt_cli.recipe.load import select
    from comt_cli.recipe.settings import Precision

    named = None if sizes is None else select(sizes, [size for subject in SUBJECTS for size in subject.shapes], "size")
    chosen = select(variants, [name for subject in SUBJECTS for name in subject.variants], "variant")
    precisions = None if precision is None else select(precision, get_args(Precision), "precision")
    check_variants(named or (), chosen)
    where, record = _begin(device, results)
    from comt_cli.lab.bench.ending import measuring
    from comt_cli.lab.bench.step import run_step_benchmark, step_plan

    plan = step_plan(where.type, named, precisions, chosen, peers_needed=variants is not None)
    with measuring(record.outcome, seconds) as go_on:
        for subject, shape, kind, of_size in plan:
            record.add(subject.page, run_step_benchmark(shape, kind, of_size, where, rounds, compiled.value, go_on))


@app.command(cls=Verb)
def kernels(
    sizes: Annotated[
        str | None,
        _names(
            "Sizes: 60m, 130m, 250m, 350m, 1b as published (all five on a GPU if not given), or bench, smoke, which "
            "are for a CPU."
        ),
    ] = None,
    ops: Annotated[str | None, _names("Only these: heads, swiglu, add_norm, modulate, projection.")] = None,
    gates: Annotated[str | None, _names("Only these kinds of gates: none, comt-r2, transponder-r8.")] = None,
    dtypes: Annotated[
        str | None,
        _names("Types of the numbers: bf16, fp32. Both if not given, of a recipe those that it trains in."),
    ] = None,
    rounds: Rounds = 30,
    gemm: Annotated[
        bool,
        typer.Option(
            "--gemm", help="Time the model's matrix products with and without columns for gates, and nothing else."
        ),
    ] = False,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="On an NVIDIA GPU: find the fastest tiles of each kernel first; go on where it was stopped."
        ),
    ] = False,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="At the shapes of a recipe of language models, instead of --sizes; with the gates that --gates names, "
            "r = 2 and r = 8, whatever the recipe's are.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(help="Of --recipe: small if not given.", autocompletion=completion.scales, show_default=False),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="--seconds, by the minute: 3 with --tune if neither is given.", show_default=False),
    ] = None,
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
    from comt_cli.lab.bench.shapes import of_run
    from comt_cli.lab.bench.subjects import DTYPES, GATES, LANGUAGE, OPS
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
    from comt_cli.lab.bench.ending import measuring
    from comt_cli.lab.bench.kernels import run_gemm_benchmark, run_kernel_benchmark
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
    with measuring(record.outcome, limit) as go_on:
        if gemm:
            news = run_gemm_benchmark(shapes, types, where, rounds, go_on)
        elif tune:
            news = run_tuning(todo, kinds, where, rounds, go_on)
        else:
            news = run_kernel_benchmark(shapes, operations, kinds, types, where, rounds, go_on)
        record.add("kernels", news)


@app.command(cls=Verb)
def decode(
    sizes: Annotated[
        str | None,
        _names(
            "Language models: 60m, 130m, 250m, 350m, 1b as published, bench, smoke, which are for a CPU. "
            "Translators: base, mt-bench, which is for a CPU. All that are for the device if not given."
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            metavar="1,4",
            help="Batch sizes: texts that are written at once. 1,4,16,64 if not given, of translators 1,16.",
        ),
    ] = None,
    variants: Annotated[
        str | None, _names("Only these variants, such as plain,transponder-fused; plain-uncached for translators.")
    ] = None,
    dtypes: Annotated[
        str | None,
        _names("Types of the numbers: bf16, fp32. If not given bf16, of translators fp32, as comt translate has it."),
    ] = None,
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
    from comt_cli.lab.bench.subjects import DECODED, DTYPES, check_variants
    from comt_cli.recipe.load import select

    decoded = DECODED.values()
    of_sizes = {size: each.variants for each in decoded for size in each.subject.shapes}
    named = None if sizes is None else select(sizes, of_sizes, "size")
    chosen = select(variants, list(dict.fromkeys(name for each in decoded for name in each.variants)), "variant")
    types = None if dtypes is None else select(dtypes, DTYPES, "type")
    batches = None if batch is None else _batches(batch)
    check_variants(named or (), chosen, of_sizes)
    where, record = _begin(device, results)
    from comt_cli.lab.bench.decode import run_decode_benchmark
    from comt_cli.lab.bench.decode_translation import run_translation_benchmark
    from comt_cli.lab.bench.ending import measuring

    run = {"decode": run_decode_benchmark, "decode-translation": run_translation_benchmark}
    with measuring(record.outcome, seconds) as go_on:
        for each in decoded:
            wanted = named or each.subject.default_sizes(where.type)
            shapes = [each.subject.shapes[size] for size in wanted if size in each.subject.shapes]
            of_these = [name for name in chosen if name in each.variants]
            if shapes and of_these:
                how = types or [each.dtype], batches or each.batches, where, rounds, go_on
                record.add(each.page, run[each.page](shapes, of_these, *how))


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
    from comt_cli.lab.bench.recipe_costs import costs_of

    costs_of(recipe, scale, rows, columns, set_, also, rounds, seconds, device, results, overwrite=overwrite)


@app.command(cls=Verb)
def page(results: options.Results = options.DEFAULT_RESULTS) -> None:
    """Write all pages and figures anew from the measured CSVs. Goals are as they are today. Measures nothing.

    Example:

      comt bench page
    """
    from comt_cli.lab.bench.page import renew_page
    from comt_cli.lab.bench.record import pages
    from comt_cli.report.terminal import say_written

    folder, found = results / "bench", {}
    with contextlib.suppress(FileNotFoundError):
        next(folder.iterdir(), None)  # since Python 3.13 glob hides a folder that may not be read
        found = {path: page for name, page in pages().items() for path in sorted(folder.glob(f"*/{name}.csv"))}
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
    minutes: Annotated[
        float | None, typer.Option(min=0, help="--seconds, by the minute: 9 if neither is given.", show_default=False)
    ] = None,
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
    from comt_cli.lab.bench.ending import measuring
    from comt_cli.lab.bench.stages import reach, run_stages, stages_for
    from comt_cli.report.terminal import say_written

    if where.type == "cuda":
        raise UserError("comt bench all is for a CPU", "On a GPU comt bench gpu measures (make gpu); or: --device cpu.")
    written: dict[Path, None] = {}
    stages = stages_for(where, rounds)
    typer.echo(reach(stages, limit), err=True)
    with measuring(record.outcome, limit) as deadline:
        try:
            for kind, news in run_stages(stages, deadline):
                written.update(dict.fromkeys(record.add(kind, [news], quiet=True)))
        finally:
            say_written(written)


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


def _limit(seconds: float | None, minutes: float | None, usual: float) -> float:
    """The seconds that either says, `usual` where neither does."""
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
    return list(planned.specs)


def _batches(text: str) -> list[int]:
    try:
        batches = [int(part) for part in text.split(",")]
    except ValueError:
        batches = [0]
    if min(batches) < 1:
        raise UserError(f"--batch {text}: batch sizes are whole numbers from 1", "For instance --batch 1,16.")
    return batches
