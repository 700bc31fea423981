"""Image classification: predict the class of an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli import words
from comt_cli.tasks.base import MAP_SITES, Drawing, Metric, Task, Unit, percentage

if TYPE_CHECKING:
    from comt_cli.tasks.settings.images import ImageSettings, ResNetSettings


class ImageClassification(Task["ImageSettings"]):
    """Train the image classifiers of a recipe. Write its table with the paper's numbers.

    Finished runs are skipped and stopped runs resume, as with comt train-lm. At scale smoke the images are glyphs,
    rendered here. CIFAR is downloaded once; ImageNet is read from the folder of --set data.folder=DIR. More:
    recipes/IMAGES.md, recipes/RUNNING.md

    Examples:
      comt train-resnet table1
      comt train-resnet sas/table4 --scale small --device cuda
    """

    name: ClassVar = "images"
    command: ClassVar = "train-resnet"
    unit: ClassVar = Unit("images", "img")
    model_kind: ClassVar = "an image classifier"
    verbs: ClassVar = ("analyze-gates", "plot-gradients")
    metrics: ClassVar[Mapping[str, Metric]] = {
        "accuracy": percentage("top-1 accuracy on the validation images in per cent", "top-1 accuracy, %", "accuracy"),
        "top5_accuracy": percentage(
            "top-5 accuracy on the validation images in per cent", "top-5 accuracy, %", "top-5 accuracy"
        ),
    }
    drawings: ClassVar = {
        "conv-gradients": Drawing(of_all_rows=True, from_log="train.gradient_norms_every"),
        "residual-shares": Drawing(of_method="sas-resnet"),
        "block-gradients": Drawing(of_all_rows=True),
    }
    sites: ClassVar = MAP_SITES
    plain_method: ClassVar = "addition"
    plain: ClassVar = "the plain network of the same size"
    differs: ClassVar = "whose width and classes may be other ones"
    runtime_keys: ClassVar = {
        "train": frozenset({"save_every", "keep_every", "observe_every", "kernels", "cuda_graphs"}),
        "data": frozenset({"folder"}),
    }
    """The number of devices, which is not a setting, changes more here: each device's batch norms see its part of the
    batch. The run prints this when it starts (`caution`), and every `result.json` has the number of its processes."""
    checkpoint_parts: ClassVar = ("classes", "mean", "std", "size")
    """The names of the classes, the colours' mean and standard deviation in training, and the images' size."""
    typical_share: ClassVar = 0.1  # batch norms are bound by memory, as are narrow convolutions on a CPU
    description: ClassVar = (
        "{resnet}: {blocks} {shape.block} blocks, {shape.width} channels at first, {model.stem} stem{size}. Images "
        "{data.images} of {data.size} pixels, {data.classes:,} classes{share}, {augmentation}; {train.steps:,} steps "
        "of {train.batch_size}{amount}"
    )
    amount: ClassVar = "images a run"
    trained_on: ClassVar = "{image_set}, of {image_size:span} pixels"

    def data_name(self, settings: ImageSettings) -> str:
        return settings.data.images

    def dimensions(self, settings: ImageSettings) -> dict[str, int]:
        return {"classes": settings.data.classes, "size": settings.data.size}

    def network_and_data(self, settings: ImageSettings, size: Sequence[str] = ()) -> str:
        model, data, train = settings.model, settings.data, settings.train
        shape = model.shape()
        what = ", ".join([f"{'-'.join(map(str, shape.blocks))} blocks", f"{shape.width} channels at first", *size])
        steps = f"{words.plural(train.steps, 'step')} of {train.batch_size:,} images"
        return f"{_named(model.size)} ({what}) on {words.in_words(data.images)} of {data.size} pixels, {steps}"

    def phrases(self, settings: ImageSettings) -> dict[str, Any]:
        data = settings.data
        shares = {"train": data.train_images, "validate": data.validation_images}
        return {
            "resnet": self._resnet(settings.model),
            "blocks": "-".join(map(str, settings.model.shape().blocks)),
            "share": "".join(f", the first {count:,} to {use} on" for use, count in shares.items() if count),
            "augmentation": "no augmentation" if data.augmentation == "none" else f"augmentation {data.augmentation}",
        }

    def _resnet(self, model: ResNetSettings) -> str:
        """`ResNet-18`, and its differences from the size of that name: `PreAct-ResNet-110, shallower and narrower`."""
        from comt_cli.tasks.settings.images import RESNET_SIZES

        shape, named = model.shape(), RESNET_SIZES[model.size]
        blocks, layers = sum(shape.blocks), sum(named.blocks)
        departs = ["shallower" if blocks < layers else "deeper"] if blocks != layers else []
        departs += ["narrower" if shape.width < named.width else "wider"] if shape.width != named.width else []
        return ", ".join(part for part in (_named(model.size), words.listing(departs)) if part)

    def own_columns(self, settings: ImageSettings) -> dict[str, Any]:
        data = settings.data
        shown = {"image_set": data.images, "image_size": data.size, "augmentation": data.augmentation}
        return {"width": settings.model.shape().width, **shown}

    def networks(self, sizes: Sequence[str]) -> str:
        return words.listing(map(_named, sizes))

    def chance(self, settings: ImageSettings) -> float | None:
        return 100 / settings.data.classes


def _named(size: str) -> str:
    """`ResNet-18` for `resnet18`, `PreAct-ResNet-110` for `preact-resnet110`."""
    return size.replace("resnet", "ResNet-").replace("preact", "PreAct")
