"""What models cost: FLOPs by the closed form, memory against what a real forward pass keeps."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.text.settings import DataSettings
from comt_cli.layers.initialise import initialise
from comt_cli.models.accounting import cost_of, total_flops, training_bytes
from comt_cli.models.build import model_of
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.images import ImageSettings, ImageTrainSettings, ResNetSettings
from comt_cli.tasks.settings.language import ModelSettings, Settings, TrainSettings

T, SIZE = 128, 16
NAMES = {"paper": "comt", "table": "t", "scale": "smoke", "row": "a", "column": "b", "seed": 1}


def language(method: str, checkpointing: bool = False, **model) -> RunSpec:
    settings = Settings(
        model=ModelSettings(**{"size": "tiny", "layers": 3, **model}),
        data=DataSettings(tokenizer="bytes", sequence_length=T),
        train=TrainSettings(steps=1, activation_checkpointing=checkpointing),
    )
    return RunSpec(**NAMES, command="train-lm", method={"name": method}, settings=settings, data_fingerprint="none")


def images(method: str, **train) -> RunSpec:
    settings = ImageSettings(
        model=ResNetSettings(width=8, blocks=(1, 1)),
        data=ImageDataSettings(size=SIZE),
        train=ImageTrainSettings(**{"steps": 30, "batch_size": 4, **train}),
    )
    return RunSpec(**NAMES, command="train-resnet", method={"name": method}, settings=settings, data_fingerprint="none")


# Multiply-adds of one image: stem, two convolutions at full size, two at half, the projection, the classifier.
PIXELS = SIZE * SIZE
STEM = 27 * 8 * PIXELS
INNER = 2 * 9 * 8 * 8 * PIXELS + (9 * 8 * 16 + 9 * 16 * 16 + 8 * 16) * PIXELS // 4
HEAD = 16 * 10


def test_flops_of_images():
    """2 a multiply-add, three times for forward and backward; of the stem twice: the image's gradient is not needed.
    The window's one filter is in the convolution; the 1x1 gates are matrix products."""
    plain, window, pixel = (
        cost_of(images(name)).flops_per_row for name in ("addition", "comt-sliding-window", "comt-pixel")
    )
    assert plain == 2 * (3 * (INNER + HEAD) + 2 * STEM)
    assert total_flops(images("addition")) == plain * 4 * 30
    filters = 2 * (9 * 8 + 1) * PIXELS + (9 * 8 + 1 + 9 * 16 + 1) * PIXELS // 4
    assert window - plain == 6 * filters
    assert pixel - plain == 6 * (2 * 2 * (8 + 1) * PIXELS + 2 * 2 * (16 + 1) * PIXELS // 4)


def really_kept(spec: RunSpec, rows: int) -> int:
    """Numbers that a forward pass keeps on the CPU, what the model itself holds apart."""
    model = model_of(spec).to_empty(device="cpu")
    initialise(model, 0)
    held = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    if spec.command == "train-lm":
        given = torch.zeros(rows, T, dtype=torch.long)
    else:
        given = torch.zeros(rows, 3, SIZE, SIZE).to(memory_format=torch.channels_last)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model.body(given)
        storages = [tensor.untyped_storage() for address, tensor in kept.items() if address not in held]
        assert output.requires_grad
        return sum(storage.nbytes() // 4 for storage in storages)


@pytest.mark.parametrize(
    ("spec", "off", "head"),
    [
        # Fused attention keeps a few numbers a token that the meta device's does not, and unfused copies of the keys.
        (language("pre-ln"), 0.15, (T * 128, 258 * 128)),  # the gradients that the head's loss keeps
        (language("transponder"), 0.15, (T * 128, 258 * 128)),
        (images("sas-resnet"), 0.01, (0, 0)),
    ],
    ids=["pre-ln", "transponder", "sas-resnet"],
)
def test_it_is_what_a_forward_pass_keeps(spec, off, head):
    cost = cost_of(spec)
    two, four = (really_kept(spec, rows) for rows in (2, 4))
    assert cost.kept_per_row - head[0] == pytest.approx((four - two) / 2, rel=off)
    assert cost.kept_always - head[1] == pytest.approx(2 * two - four, rel=off, abs=5e4 if head[1] else 500)


def test_memory_grows_with_what_it_should():
    def needed(count: int, **train) -> int:
        return training_bytes(images("addition", **train), count)

    cost = cost_of(images("addition"))
    assert needed(2) - needed(1) == 4 * cost.kept_per_row
    assert needed(7) == needed(1) + 6 * 4 * cost.kept_per_row
    assert needed(1) - needed(1, momentum=0.0) == 4 * cost.parameters  # weights, gradients, one momentum, not two
    kept = needed(1) - 12 * cost.parameters
    assert needed(1, precision="bf16-pure") == 6 * cost.parameters + kept // 2
    assert needed(1, precision="bf16-mixed") == 12 * cost.parameters + kept // 2


def test_checkpointing_keeps_one_block_and_all_that_a_state_holds_for_the_others():
    plain, saving = cost_of(language("comt")), cost_of(language("comt", checkpointing=True))
    assert saving.flops_per_row == plain.flops_per_row  # of the model, whatever is computed twice
    assert plain.kept_per_row / 3 < saving.kept_per_row < 0.5 * plain.kept_per_row
    assert saving.kept_always <= plain.kept_always
    pre_ln, pre_ln_saving = (cost_of(language("pre-ln", each)).kept_per_row for each in (False, True))
    for method, more in (("denseformer", 1), ("hyper-connections", 3)):  # a layer's output, or the other streams
        kept, saved = (cost_of(language(method, each)).kept_per_row for each in (False, True))
        inputs = saved - pre_ln_saving - (kept - pre_ln) / 3  # without the block that is computed again
        assert inputs == pytest.approx(2 * more * T * 128, abs=2)
