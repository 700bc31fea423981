"""`comt bench`: speed and memory, measured as ratios in one interleaved run, or predicted, and written down."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from comt_cli.commands import options
from comt_cli.commands.examples import Verb, VerbGroup
from comt_cli.commands.loading import loading

if TYPE_CHECKING:
    import torch

    from comt_cli.report.benchmark import Page
    from comt_cli.tasks.settings.llama import LlamaSize

app = typer.Typer(
    cls=VerbGroup,
    help="""Measure speed and memory, as ratios in one interleaved run.

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


Sizes = Annotated[
    str | None,
    typer.Option(
        metavar="A,B",
        help="Sizes: 60m, 130m, 250m, 350m, 1b as published (all five on a GPU if not given), or bench, smoke, which "
        "are for a CPU.",
    ),
]
Dtypes = Annotated[str, typer.Option(metavar="A,B", help="Types of the numbers: bf16, fp32.")]
Rounds = Annotated[int, typer.Option(min=3, help="Rounds; each times every variant once.")]


@app.command(cls=Verb)
def step(
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Language models: 60m, 130m, 250m, 350m, 1b as published, bench, smoke, which are for a CPU. Image "
            "classifiers: resnet18, resnet18-b64, resnet50, resnet152, resnet50-224, resnet18-b32, which is for a "
            "CPU. All that are for the device if not given.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="fp32, bf16-mixed, bf16-pure. If not given bf16-pure for language models and bf16-mixed for image "
            "classifiers, on a CPU fp32 too.",
        ),
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Only these variants, such as plain-compiled,transponder-fused; window-fused for images.",
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
    device: options.Device = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Time a training step of plain, CoMT and Transponder models beside transformers' LLaMA, and of ResNets without and
    with CoMT's modulators beside torchvision's, and count its memory.

    Writes bench/DEVICE/step.csv and step-images.csv, a page and a figure of each; rows of an earlier
    measurement of the same variant are replaced. Where a batch does not fit on a GPU, a smaller one is taken, for all
    variants.

    Examples:

      comt bench step --sizes 60m,130m --variants plain-compiled,plain-fused,transponder-fused

      comt bench step --sizes resnet18-b32 --precision fp32
    """
    from typing import get_args

    from comt_cli.benchmarks.image_shapes import IMAGE_SHAPES, default_image_sizes
    from comt_cli.benchmarks.names import IMAGE_VARIANTS, STEP_VARIANTS
    from comt_cli.benchmarks.shapes import SHAPES, default_sizes
    from comt_cli.errors import UserError
    from comt_cli.recipe.load import select
    from comt_cli.recipe.settings import Precision

    named = None if sizes is None else select(sizes, [*SHAPES, *IMAGE_SHAPES], "size")
    chosen = select(variants, {**STEP_VARIANTS, **IMAGE_VARIANTS}, "variant")
    precisions = None if precision is None else select(precision, get_args(Precision), "precision")
    for size in named or ():
        there = STEP_VARIANTS if size in SHAPES else IMAGE_VARIANTS
        if not set(there) & set(chosen):
            raise UserError(f"--variants {variants}: of {size} there are no such", f"It has {', '.join(there)}.")
    loading("PyTorch and the benchmarks", device)
    from comt_cli.benchmarks.image_variants import PEER as IMAGE_PEER
    from comt_cli.benchmarks.image_variants import import_torchvision_models
    from comt_cli.benchmarks.step import run_step_benchmark
    from comt_cli.benchmarks.step_images import run_image_step_benchmark
    from comt_cli.benchmarks.step_variants import PEER, import_transformers
    from comt_cli.training.devices import pick_device

    where = pick_device(device)
    wanted = named or [*default_sizes(where.type, "step"), *default_image_sizes(where.type)]
    plan = {
        size: [name for name in chosen if name in (STEP_VARIANTS if size in SHAPES else IMAGE_VARIANTS)]
        for size in wanted
    }
    for peer, library in ((PEER, import_transformers), (IMAGE_PEER, import_torchvision_models)):
        if variants is not None and any(name.startswith(peer) for of_size in plan.values() for name in of_size):
            library()  # asked for by name: told at once, before anything is compiled
    outcome, pages = Outcome(), _pages()
    for size, of_size in plan.items():
        bf16 = "bf16-pure" if size in SHAPES else "bf16-mixed"
        for name in precisions or ([bf16] if where.type == "cuda" else ["fp32", bf16]) if of_size else []:
            how: Any = (name, of_size, where, rounds, compiled.value)
            if size in SHAPES:
                _write(pages["step"], run_step_benchmark(SHAPES[size], *how), results, outcome)
            else:
                _write(pages["step-images"], run_image_step_benchmark(IMAGE_SHAPES[size], *how), results, outcome)
    outcome.end()


@app.command(cls=Verb)
def kernels(
    sizes: Sizes = None,
    ops: Annotated[
        str | None,
        typer.Option("--ops", metavar="A,B", help="Only these: heads, swiglu, add_norm, modulate, projection."),
    ] = None,
    gates: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these kinds of gates: none, comt-r2, transponder-r8.")
    ] = None,
    dtypes: Dtypes = "bf16,fp32",
    rounds: Rounds = 30,
    gemm: Annotated[
        bool,
        typer.Option(
            "--gemm", help="Time the model's matrix products with and without columns for gates, and nothing else."
        ),
    ] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="First search for the best tile sizes of the Triton kernels (CUDA only).")
    ] = False,
    device: options.Device = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Time each gated operation in PyTorch, compiled, and as one kernel: what `kernels: auto` chooses by.

    Writes bench/DEVICE/kernels.csv, a page and a figure; rows measured earlier are replaced.

    Example:

      comt bench kernels --sizes 60m --ops swiglu,heads --dtypes bf16
    """
    from comt_cli.benchmarks.names import DTYPES, GATES, OPS
    from comt_cli.benchmarks.shapes import SHAPES, sizes_from
    from comt_cli.errors import UserError
    from comt_cli.recipe.load import select
    from comt_cli.tasks.settings.llama import LlamaSize

    if gemm and (ops is not None or gates is not None):
        raise UserError("--gemm times products alone, of all kinds of gates", "Leave --ops and --gates out.")
    select(sizes, SHAPES, "size")
    types = select(dtypes, DTYPES, "type")
    kinds = select(gates, GATES, "kind of gates")
    operations = select(ops, OPS, "operation")
    loading("PyTorch and the benchmarks", device)
    from comt_cli.benchmarks.kernels import run_gemm_benchmark, run_kernel_benchmark
    from comt_cli.training.devices import pick_device

    where = pick_device(device)
    shapes = sizes_from(sizes, where.type, "kernels")
    if tune:
        if where.type != "cuda":
            raise UserError("--tune: tile sizes are searched for on a CUDA device", "Leave --tune out.")
        _tune([LlamaSize(shape.width, shape.ffn_width, shape.layers, shape.heads) for shape in shapes], types, where)
    if gemm:
        news = run_gemm_benchmark(shapes, types, where, rounds)
    else:
        news = run_kernel_benchmark(shapes, operations, kinds, types, where, rounds)
    outcome = Outcome()
    _write(_pages()["kernels"], news, results, outcome)
    outcome.end()


@app.command(cls=Verb)
def decode(
    sizes: Sizes = None,
    batch: Annotated[
        str, typer.Option(metavar="1,4", help="Batch sizes: texts that are written at once.")
    ] = "1,4,16,64",
    variants: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these variants, such as plain,transponder-fused.")
    ] = None,
    dtypes: Dtypes = "bf16",
    rounds: Rounds = 15,
    device: options.Device = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Time a decode step with a key-value cache, and the reading of a prompt of 512 tokens.

    Writes bench/DEVICE/decode.csv and a page; rows measured earlier are replaced.

    Example:

      comt bench decode --sizes 60m --batch 1,64
    """
    from comt_cli.benchmarks.names import DECODE_VARIANTS, DTYPES
    from comt_cli.benchmarks.shapes import SHAPES, sizes_from
    from comt_cli.recipe.load import select

    select(sizes, SHAPES, "size")
    chosen = select(variants, DECODE_VARIANTS, "variant")
    types = select(dtypes, DTYPES, "type")
    batches = _batches(batch)
    loading("PyTorch and the benchmarks", device)
    from comt_cli.benchmarks.decode import run_decode_benchmark
    from comt_cli.training.devices import pick_device

    where = pick_device(device)
    shapes = sizes_from(sizes, where.type, "decode")
    news = run_decode_benchmark(shapes, chosen, types, batches, where, rounds)
    outcome = Outcome()
    _write(_pages()["decode"], news, results, outcome)
    outcome.end()


@app.command(cls=Verb)
def predict(
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Only these: 60m, 130m, 250m, 350m, 1b, resnet18, resnet18-b64, resnet50, resnet152, resnet50-224.",
        ),
    ] = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Write down what a step should cost on an NVIDIA H200, from bytes and FLOPs alone: predicted, not measured.

    Writes bench/nvidia-h200/predicted.csv (language models) and predicted-images.csv (ResNets), a page and a
    figure of each, which call themselves so.

    Example:

      comt bench predict
    """
    from comt_cli.benchmarks.image_roofline import image_predictions
    from comt_cli.benchmarks.image_shapes import IMAGE_GPU_SIZES
    from comt_cli.benchmarks.roofline import predictions
    from comt_cli.benchmarks.shapes import GPU_SIZES
    from comt_cli.recipe.load import select

    wanted, pages = select(sizes, [*GPU_SIZES, *IMAGE_GPU_SIZES], "size"), _pages()
    texts, images = ([size for size in wanted if size in kind] for kind in (GPU_SIZES, IMAGE_GPU_SIZES))
    if texts:
        _write(pages["predicted"], [predictions(texts)], results, Outcome())
    if images:
        _write(pages["predicted-images"], [image_predictions(images)], results, Outcome())


@app.command(cls=Verb)
def page(results: options.Results = options.DEFAULT_RESULTS) -> None:
    """Write all pages and figures anew from the measured CSVs; goals as they are today. Measures nothing.

    Example:

      comt bench page
    """
    from comt_cli.errors import UserError
    from comt_cli.report.benchmark import renew_page

    found = {
        path: page for name, page in _pages().items() for path in sorted((results / "bench").glob(f"*/{name}.csv"))
    }
    if not found:
        raise UserError(f"nothing has been measured in {results / 'bench'}", "comt bench all measures.")
    for path, kind in sorted(found.items(), key=lambda item: item[0]):
        written = renew_page(kind, path)
        if not written:
            typer.echo(f"{path}: of an older version, left as it is", err=True)
        for each in written:
            typer.echo(f"wrote {each}")


@app.command("all", cls=Verb)
def everything(
    minutes: Annotated[float, typer.Option(min=0, help="Begin nothing that is not likely to end within so many.")] = 9,
    rounds: Annotated[
        int | None,
        typer.Option(min=3, help="Rounds; each times every variant once. 7 on a GPU, 15 elsewhere if not given."),
    ] = None,
    device: options.Device = None,
    results: options.Results = options.DEFAULT_RESULTS,
) -> None:
    """Measure everything, the most wanted first, as much of it as the minutes allow. What `make bench` calls.

    What was measured is written after each part, so that stopping early loses only the part at hand. How long a part
    takes on a GPU is a guess so far.

    Example:

      comt bench all --minutes 9
    """
    loading("PyTorch and the benchmarks", device)
    from comt_cli.benchmarks.stages import Deadline, run_stages, stages_for
    from comt_cli.training.devices import pick_device

    where = pick_device(device)
    pages, outcome = _pages(), Outcome()
    written: dict[Path, None] = {}
    for kind, news in run_stages(stages_for(where, rounds), Deadline(60 * minutes)):
        written.update(dict.fromkeys(_write(pages[kind], [news], results, outcome, quiet=True)))
    for path in written:
        typer.echo(f"wrote {path}")
    outcome.end()


@dataclass
class Outcome:
    """How many rows a command has measured, and the lines that say what failed."""

    rows: int = 0
    failed: list[str] = field(default_factory=list)

    def end(self) -> None:
        """Nothing where all went well, left-out variants included.

        Raises:
            NotMeasured: something failed, or there is not one row.
        """
        from comt_cli.benchmarks.failures import NotMeasured

        if self.failed:
            count = f"{len(self.failed)} part{'s' if len(self.failed) != 1 else ''} failed"
            rest = "the rest was measured and written" if self.rows else "nothing was measured"
            raise NotMeasured(f"{count}, {rest}", "\n  ".join(self.failed))
        if not self.rows:
            raise NotMeasured("nothing was measured: all of it was left out", "The lines above say why.")


def _tune(widths: Iterable[LlamaSize], dtypes: Iterable[str], device: torch.device) -> None:
    """Search, and put every find into the table of the program at once: a search that is stopped keeps what it has."""
    from comt_cli.benchmarks.kernel_cases import DTYPES
    from comt_cli.benchmarks.tune import tune
    from comt_cli.kernels import tuning

    wanted = {DTYPES[dtype] for dtype in dtypes}
    types = [name for name, dtype in tuning.DTYPES.items() if dtype in wanted]
    for row, milliseconds in tune(tuning.shapes(widths), dtypes=types, device=device):
        tuning.write([row])
        typer.echo(
            f"{row.kernel} n{row.n}-k{row.d}, {row.t} rows, {row.dtype}: {milliseconds:.3f} ms, {row.tiles}", err=True
        )


def _batches(text: str) -> list[int]:
    from comt_cli.errors import UserError

    try:
        batches = [int(part) for part in text.split(",")]
    except ValueError:
        batches = [0]
    if min(batches) < 1:
        raise UserError(f"--batch {text}: batch sizes are whole numbers from 1", "For instance --batch 1,16.")
    return batches


def _pages() -> dict[str, Page]:
    from comt_cli.benchmarks import gemm, image_roofline, image_shapes, kernel_cases, names, roofline, shapes
    from comt_cli.report import benchmark_pages as pages

    sizes = list(shapes.SHAPES)
    ops = {**names.OPS, "gemm": "the library's matrix product alone"}
    gates = list(dict.fromkeys([*names.GATES, *gemm.COLUMNS]))
    predicted = [f"{method}-{design}" for method in ("comt", "transponder") for design in roofline.DESIGNS]
    of_images = [f"{method}-{design}" for method in image_roofline.METHODS for design in image_roofline.DESIGNS]
    image_sizes = list(image_shapes.IMAGE_SHAPES)
    return {
        "step": replace(pages.step_page(names.STEP_VARIANTS, sizes), renew=shapes.step_goals),
        "step-images": replace(
            pages.image_step_page(names.IMAGE_VARIANTS, image_sizes), renew=image_shapes.image_step_goals
        ),
        "kernels": pages.kernels_page({**kernel_cases.VARIANTS, **gemm.VARIANTS}, ops, gates, list(names.DTYPES)),
        "decode": replace(
            pages.decode_page(names.DECODE_VARIANTS, sizes, list(names.DTYPES)), renew=shapes.decode_goals
        ),
        "predicted": pages.predicted_page(predicted, sizes),
        "predicted-images": pages.predicted_images_page(of_images, image_sizes),
    }


def _write(
    page: Page, news: Iterable[str | list[Any]], results: Path, outcome: Outcome, *, quiet: bool = False
) -> list[Path]:
    """Print the lines among `news` and write the rows, as they come; last the page, unless `quiet`. `outcome` is told
    what came and what failed."""
    from comt_cli.benchmarks.failures import Failed
    from comt_cli.report.benchmark import write_benchmark

    written: list[Path] = []
    for each in news:
        if isinstance(each, str):
            typer.echo(each, err=True)
            if isinstance(each, Failed):
                outcome.failed.append(each)
        elif each:
            outcome.rows += len(each)
            written = write_benchmark(page, [asdict(row) for row in each], results)
    for path in [] if quiet else written:
        if path.suffix == ".md":
            typer.echo(path.read_text(encoding="utf-8"))
        typer.echo(f"wrote {path}")
    return written
