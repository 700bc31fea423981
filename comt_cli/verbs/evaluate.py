"""`comt evaluate`: finished runs on their own data, or language models on tasks of lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from comt_cli.commands import options
from comt_cli.commands.options import OfRuns
from comt_cli.errors import UserError
from comt_cli.exchange import HUB_NAME
from comt_cli.recipe.find import DEFAULT_PAPER, table_name
from comt_cli.report.terminal import print_texts
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.evaluations import label_of
from comt_cli.verbs.models import loading
from comt_cli.verbs.select import is_selector, run_directories

if TYPE_CHECKING:
    from comt_cli.harness.evaluate import Subject

_MODELS = f"{options.SELECTORS} Or directories; with --tasks also exported folders and hub names."
_TASKS = "Tasks of lm-evaluation-harness; python-docs-cloze, python-docs-choice (no network); or paths of task files."
_CODE = "Run the Python code in a model's folder or on the hub."


def evaluate(
    chosen: Annotated[list[str], options.run_argument(_MODELS, "RUN")],
    tasks: Annotated[str | None, typer.Option(metavar="A,B", help=_TASKS)] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N items of each task, for a test.")
    ] = None,
    num_fewshot: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Examples in each prompt; the task's if not given.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, metavar="N", help="Batch size; 16 if not given.")] = None,
    *,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help=_CODE)] = False,
    device: options.Device = None,
    of: OfRuns,
) -> None:
    """Evaluate finished runs again, or language models on tasks of lm-evaluation-harness.

    Without --tasks, the final weights of a run are evaluated on its validation and test data. Metrics that its result
    lacks are added, unless an existing value differs by more than rounding: then only the differences are printed.

    With --tasks, the numbers equal those of `lm_eval --model hf` on the folder that `comt export` writes. Results are
    kept with the run, and a stopped task resumes. `comt report` shows them as columns. More: docs/evaluating.md

    Examples:
      comt evaluate table3:pre-ln+comt
      comt evaluate table3 --tasks python-docs-cloze,python-docs-choice
    """
    if tasks is None:
        if (limit, num_fewshot, batch_size) != (None, None, None) or trust_remote_code:
            wrong = "--limit, --num-fewshot, --batch-size and --trust-remote-code need --tasks"
            raise UserError(wrong, "For example: --tasks python-docs-cloze,python-docs-choice")
        _again(chosen, device, of)
        return
    names = list(dict.fromkeys(name.strip() for name in tasks.split(",") if name.strip()))
    if not names:
        raise UserError("--tasks names no task", "For example: --tasks python-docs-cloze,python-docs-choice")
    loading("lm-evaluation-harness", device)
    from comt_cli.harness.evaluate import load_tasks, results
    from comt_cli.training.devices import pick_device

    def progress(stage: str, done: int, total: int | None) -> None:  # noqa: ARG001 - how far it is
        if not done:
            typer.echo(stage, err=True)

    # All models are checked, and all tasks loaded with their data, before the first evaluation.
    subjects = {each.kept.resolve(): each for text in chosen for each in _subjects(text, of, trust_remote_code)}
    loaded, tables, picked = load_tasks(names, num_fewshot, progress), [], str(pick_device(device))
    for number, subject in enumerate(subjects.values(), 1):
        typer.echo(f"evaluating {subject.name} ({number} of {len(subjects)}) ...", err=True)
        lines: list[list[str]] = []
        for result, path, was_there in results(subject, loaded, limit, batch_size or 16, picked, progress):
            typer.echo(f"{label_of(result)}: {'was' if was_there else 'is'} in {path}", err=True)
            for name, metric in result["metrics"].items():
                value, error = ("-" if metric[key] is None else f"{metric[key]:.4f}" for key in ("value", "stderr"))
                lines.append([label_of(result), name, value, error, f"{result['count']:,}"])
        tables.append((_heading(subject), lines))
    for heading, lines in tables:
        typer.echo(heading)
        print_texts(["task", "metric", "value", "s.e. over items", "items"], lines, indent="  ")


def _heading(subject: Subject) -> str:
    """The selector and scale of a run, or the name of another model."""
    if not isinstance(subject.source, RunDirectory):
        return subject.name
    spec = subject.source.spec()
    table = f"{spec.paper}/{table_name(spec.table, spec.changed, type(spec.settings))}"
    return f"{table.removeprefix(f'{DEFAULT_PAPER}/')}:{spec.row}:{spec.column}:{spec.seed}, scale {spec.scale}"


def _again(chosen: list[str], device: str | None, of: OfRuns) -> None:
    """Evaluate runs on their own data."""
    # A run that was moved aside has the same id as the run that replaced it.
    every = {(directory.spec().id, directory.path.resolve()): directory for directory in run_directories(chosen, of)}
    loading("PyTorch", device)
    from comt_cli.training.devices import pick_device
    from comt_cli.training.loop import evaluate_again
    from comt_cli.training.parallel import World

    for directory in every.values():
        typer.echo(f"evaluating {directory.shown} ...", err=True)
        added, off = evaluate_again(directory, World(pick_device(device)))
        new = ", ".join(added) or "nothing (the result is complete)"
        typer.echo(f"{directory.shown}: values reproduced (largest relative difference {off:.1e}); added: {new}")


def _subjects(text: str, of: OfRuns, is_trusted: bool) -> Iterator[Subject]:
    """The models that an argument names."""
    from comt_cli.harness.evaluate import of_folder, of_run

    path = Path(text)
    if (path / "config.json").is_file() and not (path / "spec.json").is_file():
        yield of_folder(path, text, is_trusted=is_trusted)
    elif HUB_NAME.fullmatch(text) and not path.exists() and not is_selector(text, of.runs):
        yield of_folder(None, text, is_trusted=is_trusted)
    elif path.is_file() and path.name != "checkpoint.pt":
        hint = f"Make a folder of a .pt or .gguf file: comt export {text} DIR."
        raise UserError(f"{text} is a file, not a run or a folder", hint)
    else:
        yield from map(of_run, run_directories([text], of))
