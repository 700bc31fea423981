"""What was trained, in one line for titles and captions: network, data, length, seeds. Said from the runs' settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from comt_cli.recipe.image_settings import IMAGE_CLASSES, ImageSettings, ResNetSettings
from comt_cli.recipe.settings import Settings
from comt_cli.recipe.sizes import RESNET_SIZES
from comt_cli.report import format
from comt_cli.report.table import Table
from comt_cli.runs.plan import RunSpec

_WORDS = {
    "c4": "C4",
    "openwebtext": "OpenWebText",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
}
"""Data sets as papers write them, where that is not their name in a recipe."""


def in_words(name: str) -> str:
    """The name of a column or a data set as papers write it: `C4, 60m` for `c4/60m`."""
    if name.startswith("files:"):
        return name
    return ", ".join(_WORDS.get(part, part) for part in name.split("/") if part)


def network_and_data(settings: Settings | ImageSettings, parameters: float | None = None) -> str:
    """`LLaMA tiny (4 layers, 128 wide) on python-docs, 480 steps of 4 x 128 tokens`, `parameters` beside the layers."""
    size = [] if parameters is None else [f"{format.short_count(parameters)} parameters"]
    return _of_images(settings, size) if isinstance(settings, ImageSettings) else _of_text(settings, size)


def _of_text(settings: Settings, size: Sequence[str]) -> str:
    shape, data, train = settings.model.shape(), settings.data, settings.train
    what = ", ".join([f"{shape.layers} layers", f"{shape.width} wide", *size])
    return (
        f"LLaMA {settings.model.size} ({what}) on {in_words(data.corpus)}, "
        f"{format.plural(train.steps, 'step')} of {train.batch_size:,} x {data.sequence_length:,} tokens"
    )


def _of_images(settings: ImageSettings, size: Sequence[str]) -> str:
    model, data, train = settings.model, settings.data, settings.train
    shape = model.shape()
    what = ", ".join([f"{'-'.join(map(str, shape.blocks))} blocks", f"{shape.width} channels at first", *size])
    return (
        f"{network_name(model.size)} ({what}) on {in_words(data.images)} of {data.size} pixels, "
        f"{format.plural(train.steps, 'step')} of {train.batch_size:,} images"
    )


def resnet(model: ResNetSettings) -> str:
    """`ResNet-18`, and in what it departs from the size of that name: `PreAct-ResNet-110, shallower and narrower`."""
    shape, named = model.shape(), RESNET_SIZES[model.size]
    blocks, layers = sum(shape.blocks), sum(named.blocks)
    departs = ["shallower" if blocks < layers else "deeper"] if blocks != layers else []
    departs += ["narrower" if shape.width < named.width else "wider"] if shape.width != named.width else []
    return ", ".join(part for part in (network_name(model.size), format.listing(departs)) if part)


def network_name(size: str) -> str:
    """A ResNet's size as papers write it: `ResNet-18` for `resnet18`, `PreAct-ResNet-110` for `preact-resnet110`."""
    return size.replace("resnet", "ResNet-").replace("preact", "PreAct")


def of_runs(specs: Iterable[RunSpec], overrides: Sequence[str] = ()) -> str:
    """The runs of a figure: `pre-ln+comt: LLaMA tiny ...; seed 1; scale smoke`. Rows that share their network are named
    together; the method stands in brackets where the row's name does not say it. `overrides` are the `--set` arguments
    behind them."""
    specs = list(specs)
    rows: dict[str, list[str]] = {}
    for spec in specs:
        names = rows.setdefault(network_and_data(spec.settings), [])
        if (name := _named(spec)) not in names:
            names.append(name)
    parts = [f"{format.listing(names)}: {what}" for what, names in rows.items()]
    seeds = sorted({spec.seed for spec in specs})
    scales = dict.fromkeys(spec.scale for spec in specs)
    return f"{'; '.join(parts)}; {_seeds(seeds)}; scale {format.listing(scales)}{_changed(overrides)}"


def _named(spec: RunSpec) -> str:
    method = str(spec.method["name"])
    return spec.row if method in spec.row else f"{spec.row} ({method})"


def of_table(table: Table) -> str:
    """The runs of a table, column by column where they differ: every row was trained like the baseline."""
    columns: dict[str, list[str]] = {}
    for column in table.columns:
        reference = table.entries.get((table.baseline, column)) or table.column(column)[0]
        parameters = reference.cell.average("parameters")
        columns.setdefault(network_and_data(table.specs[column].settings, parameters), []).append(column)
    if len(columns) == 1:
        (trained,) = columns
    else:
        trained = "; ".join(f"{format.listing(names)}: {what}" for what, names in columns.items())
    return f"{trained}; {_seeds(table.seeds)}; scale {table.scale}{_changed(table.overrides)}"


def chance(settings: Settings | ImageSettings) -> float | None:
    """The accuracy, in per cent, of guessing among the classes; None of a language model."""
    return 100 / IMAGE_CLASSES[settings.data.images] if isinstance(settings, ImageSettings) else None


def _changed(overrides: Sequence[str]) -> str:
    """The settings that are not the recipe's: a picture or a table that is copied elsewhere keeps saying so."""
    return f"; with {' '.join(overrides)}" if overrides else ""


def _seeds(seeds: Iterable[int]) -> str:
    numbers = list(seeds)
    return f"seed{'s' if len(numbers) > 1 else ''} {format.seeds(numbers)}"
