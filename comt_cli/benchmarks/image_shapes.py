"""Which image classifiers are measured, on what batches, and what the issue asks of them: `shapes` for ResNets.

Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from comt_cli.benchmarks.shapes import H200, is_processor
from comt_cli.tasks.settings.resnet import ResNetSettings


@dataclass(frozen=True)
class ImageShape:
    """What is trained: a ResNet on batches of `batch` square images, `pixels` wide. `width` and `blocks` as in a
    recipe: None is what the ResNet has."""

    size: str = "resnet18-b32"
    resnet: str = "resnet18"
    stem: Literal["3x3", "7x7"] = "3x3"
    pixels: int = 32
    classes: int = 10
    batch: int = 32
    width: int | None = None
    blocks: tuple[int, ...] | None = None

    def __str__(self) -> str:
        more = "".join(
            (f"-w{self.width}" if self.width else "", f"-l{'.'.join(map(str, self.blocks))}" if self.blocks else "")
        )
        return f"{self.resnet}{more}-s{self.stem}-c{self.classes}-b{self.batch}x{self.pixels}"

    @property
    def amount(self) -> str:
        """What a step takes in, in words."""
        return f"{self.batch:,} images"

    def halved(self) -> ImageShape:
        """The same with half the batch."""
        return replace(self, batch=self.batch // 2)

    def model(self) -> ResNetSettings:
        """The model's settings."""
        return ResNetSettings(size=self.resnet, stem=self.stem, width=self.width, blocks=self.blocks)

    def dimensions(self) -> dict[str, int]:
        """What the images give the model."""
        return {"classes": self.classes, "size": self.pixels}


IMAGE_SHAPES: dict[str, ImageShape] = {
    shape.size: shape
    for shape in (
        ImageShape(),
        ImageShape("resnet18", "resnet18", batch=512),
        ImageShape("resnet18-b64", "resnet18", batch=64),
        ImageShape("resnet50", "resnet50", batch=512),
        ImageShape("resnet152", "resnet152", batch=512),
        ImageShape("resnet50-224", "resnet50", "7x7", 224, 1000, 256),
    )
}
"""By name: one for a CPU; the paper's networks on 32-pixel images, in batches that fill a GPU and in the paper's of 64,
where the host that launches the kernels is what a GPU waits for; and one as for ImageNet."""
IMAGE_GPU_SIZES = ("resnet18", "resnet18-b64", "resnet50", "resnet152", "resnet50-224")


def default_image_sizes(device_type: str) -> Sequence[str]:
    """The sizes that are measured on a kind of device unless others are named."""
    return IMAGE_GPU_SIZES if device_type == "cuda" else ("resnet18-b32",)


# ---- what is asked of them

_STEP = {"window": 1.06, "pixel": 1.05}
_CPU_STEP = {"window": 1.15, "pixel": 1.25}
_IMAGES_PER_SECOND = {"resnet18": 60_000}
"""Of the quickest plain step on an H200."""


@dataclass(frozen=True)
class ImageGoals:
    """What is asked of one variant at one size; None where nothing is."""

    step: float | None = None
    images_per_second: float | None = None


def image_goals_of(
    variant: str, shape: str, size: str, device: str, precision: str, best_plain: str | None
) -> ImageGoals:
    """The goals of `window-fused`, `plain-compiled`, ... on batches of that `shape`, on a device of that name.

    Ratios are asked of the variants with our fused operations: on an H200 in bf16, on a CPU in bf16 and fp32. Images
    per second are asked of the quickest plain variant, on the whole batch.
    """
    base, _, how = variant.partition("-")
    fused = how in ("fused", "fused-eager")
    if is_processor(device):
        return ImageGoals(step=_CPU_STEP.get(base) if fused else None)
    if device != H200 or size not in IMAGE_GPU_SIZES or not precision.startswith("bf16"):
        return ImageGoals()
    is_plain_step = variant == best_plain and shape == str(IMAGE_SHAPES[size])
    return ImageGoals(
        step=_STEP.get(base) if fused else None,
        images_per_second=_IMAGES_PER_SECOND.get(size) if is_plain_step else None,
    )


def image_step_goals(row: Mapping[str, str]) -> dict[str, float | None]:
    """The goals of a row of step-images.csv as they are now, by its columns."""
    goals = image_goals_of(
        row["variant"], row["shape"], row["size"], row["device"], row["precision"], row["best_plain"] or None
    )
    return {"goal_step_ratio": goals.step, "goal_images_per_second": goals.images_per_second}
