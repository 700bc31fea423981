"""`comt bench`: measure speed and memory in interleaved repetitions, and write the results."""

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
    help="""Measure speed and memory. Variants are timed in turn and reported as ratios.

    Steps, kernels and decoding are written to bench/DEVICE below --results, each as a CSV and a page. A measurement
    replaces an earlier one of the same sizes and data types unless that has other variants; then it is only printed.

    Examples:
      comt bench all --minutes 9
      comt bench step --sizes bench --precision fp32
    """,
    no_args_is_help=True,
)


def _option(help: str, metavar: str | None = "A,B") -> Any:
    return typer.Option(metavar=metavar, help=help)


_SIZES = """Networks; all for the device if not given. Language models: 60m, 130m, 250m, 350m, 1b. Steps also: 60m-b64,
residual-60m, resnet18, resnet18-b64, resnet50, resnet152, resnet50-224, base, caption-base, bert-base. On a CPU: bench,
smoke; steps also: resnet18-b32, mt-bench, caption-bench, bert-bench, residual-bench."""
_VARIANTS = """Only these variants, such as plain-compiled,transponder-fused; images: window-fused; translators and
captioners: sas-eager; 60m-b64: plain-compiled-graphs."""
_DTYPES = "bf16, fp32; if not given both, for decoding bf16."
_TUNE = "On an NVIDIA GPU: find the fastest tiles of each kernel; resumes after a stop."
_ROUNDS = """Repetitions of every variant; up to as many more follow until the times are stable. With fewer than 14 in
all, no interval is given, and `kernels: auto` ignores the result."""
_MINUTES = """Time limit. Only whole repetitions are written, marked as not settled; skipped cases are printed. `all`: 9
if not given; --tune: 3."""

Sizes = Annotated[str | None, _option(_SIZES)]
Variants = Annotated[str | None, _option(_VARIANTS)]
Dtypes = Annotated[str | None, _option(_DTYPES)]


@dataclass(frozen=True)
class How:
    """Options of all measurements."""

    rounds: Annotated[int, typer.Option(min=3, metavar="N", help=_ROUNDS)] = 15
    minutes: Annotated[float | None, typer.Option(min=0, metavar="N", help=_MINUTES, show_default=False)] = None
    device: options.Device = None
    results: options.Results = options.DEFAULT_RESULTS

    def where(self) -> torch.device:
        """Import PyTorch, and return the device to measure on."""
        loading("PyTorch", self.device)
        from comt_cli.training.devices import pick_device

        return pick_device(self.device)

    def session(self, usual_minutes: float | None = None) -> Session:
        """A session that ends after the minutes or at a signal, and writes its rows below `results`."""
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
        str | None, _option("fp32, bf16-mixed, bf16-pure; the recipes' if not given, on a CPU also fp32.")
    ] = None,
    variants: Variants = None,
    how: How = _HOW,
) -> None:
    """Time a training step of each network, and measure its memory. Language models are plain, CoMT, Transponder and
    transformers' LLaMA; the others are ResNets, translators, captioners, BERTs, and LLaMAs with other residual
    connections.

    Write step.csv, step-images, step-translation, step-captioning, step-bert and step-residual. Steps of ResNets also
    go to the cache folder, for `kernels: auto` on this machine. Networks that do not fit in GPU memory are skipped.

    Examples:
      comt bench step --sizes bench --precision fp32
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
    ops: Annotated[str | None, _option("Only these operations: heads, swiglu, add_norm, modulate.")] = None,
    dtypes: Dtypes = None,
    tune: Annotated[bool, typer.Option("--tune", help=_TUNE)] = False,
    how: How = _HOW,
) -> None:
    """Time each gated operation in PyTorch, compiled, and fused. `kernels: auto` chooses by these times.

    The times also go to the cache folder; `kernels: auto` prefers them to measurements of other machines. --tune skips
    cases that the cache folder has for this card and these versions of the kernels, PyTorch and Triton.

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
        raise UserError("--tune needs an NVIDIA GPU", "Leave --tune out to measure the kernels of the CPU.")
    usual = LANGUAGE.gpu_sizes[:5] if where.type == "cuda" else ("bench", "smoke")
    shapes = [LANGUAGE.shapes[size] for size in named or usual]
    cases = kernel_cases(shapes, operations, types, where)
    if tune and not (cases := to_tune(cases)):
        typer.echo("everything is tuned already: this card was measured with these versions")
        return
    with how.session(3 if tune else None) as session:
        (run_tuning if tune else run_cases)(cases, session)


@app.command(cls=Verb)
@options.grouped
def decode(
    sizes: Sizes = None,
    batch: Annotated[str | None, _option("Batch sizes; 1,4,16,64 if not given.", "1,4")] = None,
    variants: Variants = None,
    dtypes: Dtypes = None,
    how: How = _HOW,
) -> None:
    """Time the decoding of language models.

    Measured are a step with a key-value cache, and the prefill of a 512-token prompt.

    Examples:
      comt bench decode --sizes bench
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
    """Measure the cost of a training step for every row.

    FLOPs, bytes, memory and time are written to SCALE/PAPER/NAME-costs.csv and a page below --results; the recipe's
    table there gets cost columns. Steps are timed in turn with the baseline's, as the recipe trains them and compiled.
    The baseline is always measured. Earlier rows of the same baseline and device are kept. Learning rates do not
    matter.

    Examples:
      comt bench costs table3 --rows pre-ln+comt
      comt bench costs ours/modern --scale evening --results results
    """
    planned = plan_recipe(recipe, scale, set_, rows=rows, columns=columns, also=also_rows(also))
    loaded, baseline = planned.loaded, planned.loaded.recipe.baseline
    if loaded.recipe.figure is not None:
        raise UserError(f"{loaded.name} is a figure and has no rows to compare", "comt recipes lists the tables.")
    if loaded.recipe.command == "finetune" or any(spec.source is not None for spec in planned.specs):
        hint = "Measure the recipe that trains those weights: its networks are the same."
        raise UserError(f"the runs of {loaded.name} start from trained weights", hint)
    if rows is not None and baseline not in {spec.row for spec in planned.specs}:
        planned = plan_loaded(loaded, scale, rows=f"{baseline},{rows}", columns=columns)
    where = how.where()
    from comt_cli.lab.costs import measure_recipe

    measure_recipe(planned, where, how.rounds, how.minutes, how.results)


@app.command(cls=Verb)
def page(results: options.Results = options.DEFAULT_RESULTS) -> None:
    """Write all pages again from the measured CSVs. Measure nothing.

    Examples:
      comt bench page
      comt bench page --results results
    """
    from comt_cli.lab.record import pages, renew_page

    folder = results / "bench"
    there = folder.is_dir() and any(folder.iterdir())  # since Python 3.13 glob hides a folder that may not be read
    found = {path: page for name, page in pages().items() for path in folder.glob(f"*/{name}.csv")} if there else {}
    if not found:
        raise UserError(f"there are no measurements in {folder}", "comt bench all measures everything.")
    for path in sorted(found):
        say_written([renew_page(found[path], path)])


@app.command("all", cls=Verb)
@options.grouped
def everything(how: How = _HOW) -> None:
    """Measure everything on a CPU, the most important parts first.

    Parts that would not end in time are skipped. Everything takes about 31 minutes on two cores. `make bench` runs this
    command.

    Examples:
      comt bench all
      comt bench all --minutes 35
    """
    where = how.where()
    from comt_cli.lab.kernels import kernel_cases
    from comt_cli.lab.runner import OUT_OF_TIME, run_cases
    from comt_cli.lab.step import decoding_cases, step_cases

    if where.type == "cuda":
        raise UserError("comt bench all measures a CPU", "Add --device cpu. For a GPU: comt bench gpu (make gpu).")
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
    minutes: Annotated[float, typer.Option(min=0, metavar="N", help="Time limit for all parts.")] = 9,
    folder: Annotated[
        Path, typer.Option(metavar="DIR", file_okay=False, help="Folder for measurements, logs, runs and the state.")
    ] = Path("runs/gpu"),
) -> None:
    """Test, tune and measure on a GPU, part by part. `make gpu` runs this command.

    The parts: exact resume, the CUDA tests, tuning of kernels, training steps of 60m, 350m and 1b, decoding, and CoMT's
    Table 3 at scale small with its gates. At the time limit the running part stops and keeps its results; the same
    command resumes there. DIR/gpu.tar.gz holds all results. Without a GPU: small training steps, decoding and Table 3
    at scale smoke, on the CPU.

    Examples:
      comt bench gpu
      comt bench gpu --minutes 30 --folder runs/gpu
    """
    from comt_cli.training.hardware import cuda_names

    names = cuda_names()  # before PyTorch is imported, which would take memory on the device
    loading("PyTorch")
    from comt_cli.lab.gpu import measure_parts

    measure_parts(folder.resolve(), minutes, names)
