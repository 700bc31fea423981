"""`comt bench gpu`: everything that is measured on a GPU which is lent for minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from comt_cli.commands.loading import loading


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
    from comt_cli.commit import git_commit
    from comt_cli.files import write_text
    from comt_cli.lab.bench.failures import Outcome
    from comt_cli.lab.bench.gpu import LARGEST_FILE, State, archive, parts_for, run_parts
    from comt_cli.lab.bench.limits import measuring
    from comt_cli.lab.bench.record import beside_goals

    on_cuda, folder = names != (), folder.resolve()
    parts = parts_for(folder, on_cuda=on_cuda)
    if absent := [part.name for part in parts if part.needs_cuda and not on_cuda]:
        typer.echo(f"no CUDA device here; left out: {', '.join(absent)}")
    parts = [part for part in parts if on_cuda or not part.needs_cuda]
    folder.mkdir(parents=True, exist_ok=True)
    state = State(folder, commit=git_commit(), device=names[0] if names else None)
    outcome = Outcome()
    try:
        with measuring(outcome, 60 * minutes, "parts", "The same command goes on where this one stopped.") as deadline:
            try:
                for line in run_parts(parts, state, folder, deadline):
                    typer.echo(line)
                    outcome.add(line)
            finally:
                outcome.rows = len(state.begun) if state.open(parts) else len(parts)  # with none to do all is well
    finally:
        table = beside_goals(folder / "results")
        write_text(folder / "goals.md", table)
        path = archive(folder)
        size = path.stat().st_size
        typer.echo(f"\n{table}\nto keep: {path}, {size / 2**20:.1f} MiB")
        if size > LARGEST_FILE:
            typer.echo(f"larger than {LARGEST_FILE // 2**20} MiB, which may be too large to be taken home as one file")
        still = [part.name for part in state.open(parts)]
        typer.echo(f"open: {', '.join(still)}; the same command goes on" if still else "all parts are done")
