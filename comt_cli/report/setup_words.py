"""What the runs of a column were, in a sentence: model, data and length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from comt_cli.recipe.image_settings import ImageSettings, ResNetSettings
from comt_cli.recipe.settings import Settings
from comt_cli.recipe.sizes import RESNET_SIZES
from comt_cli.report import format
from comt_cli.report.table import Entry, Table


def setup(table: Table, column: str) -> str:
    """Model, data and length of a column's runs: the baseline's, since a table's rows share them."""
    settings = table.specs[column].settings
    reference = table.entries.get((table.baseline, column)) or table.column(column)[0]
    parameters = reference.cell.average("parameters")
    size = f", {format.short_count(parameters)} parameters" if parameters else ""
    seen = [number for entry in table.column(column) for number in _seen(entry, table.subject.counted)]
    beside = table.column(column)[0].paper_column
    comparison = f"Beside the paper's column {beside}." if beside else "The paper has no such column."
    told = _images(settings, size, seen) if isinstance(settings, ImageSettings) else _text(settings, size, seen)
    return f"{told}. {comparison}"


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
        f"{_network(model)}: {blocks} {shape.block} blocks, {shape.width} channels at first, {model.stem} stem{size}. "
        f"Images {data.images} of {data.size} pixels, {data.classes:,} classes{share}, {augmentation}; "
        f"{train.steps:,} steps of {train.batch_size}{amount}"
    )


def _network(model: ResNetSettings) -> str:
    """`ResNet-18`, and in what it departs from the size of that name: `PreAct-ResNet-110, shallower and narrower`."""
    shape, named = model.shape(), RESNET_SIZES[model.size]
    blocks, layers = sum(shape.blocks), sum(named.blocks)
    departs = ["shallower" if blocks < layers else "deeper"] if blocks != layers else []
    departs += ["narrower" if shape.width < named.width else "wider"] if shape.width != named.width else []
    return ", ".join(part for part in (network_name(model.size), format.listing(departs)) if part)


def network_name(size: str) -> str:
    """A ResNet's size as papers write it: `ResNet-18` for `resnet18`, `PreAct-ResNet-110` for `preact-resnet110`."""
    return size.replace("resnet", "ResNet-").replace("preact", "PreAct")


def _seen(entry: Entry, counted: str) -> Iterator[float]:
    for run in entry.cell.runs:
        number = run.number(counted)
        if number is not None and (run.result or {})["state"] == "done":
            yield number


def _between(numbers: Sequence[float]) -> str:
    low, high = format.short_count(min(numbers)), format.short_count(max(numbers))
    return low if low == high else f"{low} to {high}"
