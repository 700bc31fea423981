"""What an image classifier costs: FLOPs by the closed form, memory against what a real forward pass keeps."""

from __future__ import annotations

import pytest
import torch
from image_method_cases import built_resnet

from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.models.accounting import cost_of, total_flops, training_bytes
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.images import ImageSettings, ImageTrainSettings
from comt_cli.tasks.settings.resnet import ResNetSettings

SIZE = 16


def spec(method: str, train: dict | None = None, **model) -> RunSpec:
    settings = ImageSettings(
        model=ResNetSettings(**{"width": 8, "blocks": (1, 1), **model}),
        data=ImageDataSettings(size=SIZE),
        train=ImageTrainSettings(**{"steps": 30, "batch_size": 4, **(train or {})}),
    )
    names = {"paper": "comt", "table": "t", "command": "train-resnet", "scale": "smoke", "row": "a", "column": "b"}
    return RunSpec(**names, seed=1, method={"name": method}, settings=settings, data_fingerprint="none")


# Multiply-adds of one image: stem, two convolutions at full size, two at half, the projection, the classifier.
PIXELS = SIZE * SIZE
STEM = 27 * 8 * PIXELS
INNER = 2 * 9 * 8 * 8 * PIXELS + (9 * 8 * 16 + 9 * 16 * 16 + 8 * 16) * PIXELS // 4
HEAD = 16 * 10


def test_flops_of_the_plain_network():
    """2 a multiply-add, three times for forward and backward; of the stem twice: the image's gradient is not needed."""
    plain = spec("addition")
    expected = 2 * (3 * (INNER + HEAD) + 2 * STEM)
    assert cost_of(plain).flops_per_row == expected
    assert total_flops(plain) == expected * 4 * 30


def test_flops_of_the_modulators():
    """The window's one filter rides along; the 1x1 gates are matrix products."""
    plain, window, pixel = (
        cost_of(spec(name)).flops_per_row for name in ("addition", "comt-sliding-window", "comt-pixel")
    )
    filters = 2 * (9 * 8 + 1) * PIXELS + (9 * 8 + 1 + 9 * 16 + 1) * PIXELS // 4
    assert window - plain == 6 * filters
    assert pixel - plain == 6 * (2 * 2 * (8 + 1) * PIXELS + 2 * 2 * (16 + 1) * PIXELS // 4)


def really_kept(spec: RunSpec, images: int) -> int:
    """Numbers that a forward pass keeps on the CPU, what the model itself holds apart."""
    settings = spec.settings.model
    model = built_resnet(spec.method, settings)
    held = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x_BCHW = torch.zeros(images, 3, SIZE, SIZE).to(memory_format=torch.channels_last)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(x_BCHW)
        storages = [tensor.untyped_storage() for address, tensor in kept.items() if address not in held]
        assert logits.requires_grad
        return sum(storage.nbytes() // 4 for storage in storages)


def test_it_is_what_a_forward_pass_keeps():
    plan = spec("sas-resnet")
    cost = cost_of(plan)
    two, four = (really_kept(plan, images) for images in (2, 4))
    assert cost.kept_per_row == pytest.approx((four - two) / 2, rel=0.01)
    assert cost.kept_always == pytest.approx(2 * two - four, rel=0.01, abs=500)


def test_what_is_kept_by_hand():
    """What the five convolutions and the projection read (ReLU keeps the same) and put out (the norms read that), the
    last map, and what the classifier reads."""
    read, put_out = 3 + 8 + 8 + 8 + 16 / 4, 8 + 8 + 8 + 3 * 16 / 4
    assert cost_of(spec("addition")).kept_per_row == (read + put_out + 16 / 4) * PIXELS + 16


def test_memory_grows_with_what_it_should():
    def needed(images: int, **train) -> int:
        return training_bytes(spec("addition", train), images)

    parameters = cost_of(spec("addition")).parameters
    activations = needed(2) - needed(1)
    assert activations == 4 * cost_of(spec("addition")).kept_per_row
    assert needed(7) == needed(1) + 6 * activations
    assert needed(1) - needed(1, momentum=0.0) == 4 * parameters  # weights, gradients and one momentum, not two moments
    kept = needed(1) - 12 * parameters
    assert needed(1, precision="bf16-pure") == 6 * parameters + kept // 2
    assert needed(1, precision="bf16-mixed") == 12 * parameters + kept // 2
