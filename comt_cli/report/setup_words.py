"""What the runs of a column were, in a sentence: model, data and length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from comt_cli.recipe.image_settings import ImageSettings
from comt_cli.recipe.settings import Settings
from comt_cli.report import format
from comt_cli.report.table import Entry, Table
from comt_cli.report.trained import in_words, resnet


def setup(table: Table, column: str) -> str:
    """Model, data and length of a column's runs: the baseline's, since a table's rows share them."""
    settings = table.specs[column].settings
    reference = table.entries.get((table.baseline, column)) or table.column(column)[0]
    parameters = reference.cell.average("parameters")
    size = f", {format.short_count(parameters)} parameters" if parameters else ""
    seen = [number for entry in table.column(column) for number in _seen(entry, table.subject.counted)]
    told = _images(settings, size, seen) if isinstance(settings, ImageSettings) else _text(settings, size, seen)
    return f"{told}. {beside(table, column)}".rstrip()


def beside(table: Table, column: str) -> str:
    """Which column of the paper's stands beside ours, as a sentence; nothing in a table without printed numbers."""
    if table.paper is None:
        return ""
    compared = table.column(column)[0].paper_column
    return f"Paper: {in_words(compared)}." if compared else "The paper has no such column."


def _text(settings: Settings, size: str, seen: Sequence[float]) -> str:
    model, data, train = settings.model, settings.data, settings.train
    shape = model.shape()
    amount = f" ({_between(seen)} tokens a run, padding apart)" if seen else ""
    return (
        f"LLaMA {model.size}: {shape.layers} layers, {shape.width} wide{size}. Corpus {data.corpus}, "
        f"{data.vocabulary_size:,} tokens ({data.tokenizer}); {train.steps:,} steps of {train.batch_size} x "
        f"{data.sequence_length}{amount}"
    )


def _images(settings: ImageSettings, size: str, seen: Sequence[float]) -> str:
    model, data, train = settings.model, settings.data, settings.train
    shape = model.shape()
    blocks = "-".join(map(str, shape.blocks))
    parts = [f"the first {data.train_images:,} to train on" if data.train_images else ""]
    parts += [f"the first {data.validation_images:,} to validate on" if data.validation_images else ""]
    share = "".join(f", {part}" for part in parts if part)
    augmentation = "no augmentation" if data.augmentation == "none" else f"augmentation {data.augmentation}"
    amount = f" ({_between(seen)} images a run)" if seen else ""
    return (
        f"{resnet(model)}: {blocks} {shape.block} blocks, {shape.width} channels at first, {model.stem} stem{size}. "
        f"Images {data.images} of {data.size} pixels, {data.classes:,} classes{share}, {augmentation}; "
        f"{train.steps:,} steps of {train.batch_size}{amount}"
    )


def _seen(entry: Entry, counted: str) -> Iterator[float]:
    for run in entry.cell.runs:
        number = run.number(counted)
        if number is not None and (run.result or {})["state"] == "done":
            yield number


def _between(numbers: Sequence[float]) -> str:
    low, high = format.short_count(min(numbers)), format.short_count(max(numbers))
    return low if low == high else f"{low} to {high}"
