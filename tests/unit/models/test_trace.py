"""Costs that one forward pass without storage tells, against torch's own counter of both passes, closed forms, and what
is kept for two rows and for three, without storage and on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from image_method_cases import CLASSES, IMAGE_METHODS, NETWORKS
from method_cases import SETTINGS, VOCABULARY, each_wiring, wiring_of
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.text.settings import DataSettings
from comt_cli.layers.initialise import initialise
from comt_cli.models import flops as flops_module
from comt_cli.models.accounting import cost_of, total_flops
from comt_cli.models.base import Linear
from comt_cli.models.build import empty_network, model_of
from comt_cli.models.flops import Trace, flops_per_sample
from comt_cli.models.memory import memory_of
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.images import ImageSettings, ImageTrainSettings, ResNetSettings
from comt_cli.tasks.settings.language import ModelSettings, Settings, TrainSettings

T = 12
SIZE = 8
ROWS = 1_000_003


def counted_both_ways(loss: Callable[[], Tensor]) -> int:
    """FLOPs of a forward and a backward pass, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(loss())
    return counter.get_total_flops()


def kept_for(model: nn.Module, run: Callable[[], Tensor]) -> int:
    """Numbers that `run` keeps for its backward pass, by the storages that they lie in."""
    held = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output = run()
    storages = (tensor for key, tensor in kept.items() if key not in held)
    numbers = sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in storages)
    assert output.requires_grad
    return numbers


@each_wiring
def test_a_language_model(options):
    """FLOPs are those of both passes, and what is kept grows with the rows."""
    settings = SETTINGS.model_copy(update={"layers": 2})  # a block that is first and last at once would tell less
    model = empty_network(settings, wiring_of(options), vocabulary=VOCABULARY, length=T)
    (tokens,) = model.example(1)
    expected = counted_both_ways(lambda: F.cross_entropy(model(tokens)[0], tokens[0], reduction="sum"))
    assert flops_per_sample(model) == expected

    def run(rows: int) -> Tensor:
        return model.body(*model.example(rows))

    with Trace(ROWS) as trace:
        _, kept = trace.kept_by(model, lambda: run(ROWS))
    assert [kept.at(rows) for rows in (2, 3)] == [kept_for(model, lambda rows=rows: run(rows)) for rows in (2, 3)]
    assert kept.per_row > T * SETTINGS.shape().width


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["comt-sliding-window", "pixel-without-gamma", "sas-free"])
def test_an_image_classifier(name, network):
    model = empty_network(NETWORKS[network], wiring_of(IMAGE_METHODS[name]), classes=CLASSES, size=SIZE)
    labels = torch.zeros(2, dtype=torch.long, device="meta")
    expected = counted_both_ways(lambda: F.cross_entropy(model(*model.example(2)), labels, reduction="sum"))
    assert 2 * flops_per_sample(model) == expected
    with Trace(ROWS) as trace:
        _, kept = trace.kept_by(model, lambda: model(*model.example(ROWS)))
    expected = [kept_for(model, lambda images=images: model(*model.example(images))) for images in (2, 3)]
    assert [kept.at(images) for images in (2, 3)] == expected


def test_the_rows_divide_no_size_of_the_network():
    """What is kept for each row would else be told from what is kept once by mistake."""
    long = flops_module.rows_to_trace(nn.Linear(8, 2018), [inputs(12)], 2**42)
    assert long == 1_013
    assert flops_module.rows_to_trace(nn.Linear(8, 8), [inputs(1_013 * 3)], 2**42) == 1_009
    assert flops_module.rows_to_trace(nn.Linear(8, 1_000_003, device="meta"), [inputs(12)], 64) == 1_000_033


def parameter(*shape: int) -> Tensor:
    return torch.zeros(*shape, device="meta", requires_grad=True)


def inputs(rows: int) -> Tensor:
    return torch.zeros(rows, 5, device="meta")


def test_what_needs_no_gradient_and_what_does_not_grow_with_the_rows():
    W_75, V_67, A_72, B_25 = parameter(7, 5), parameter(6, 7), parameter(7, 2), parameter(2, 5)
    with Trace(ROWS) as trace:
        F.linear(F.linear(inputs(ROWS), W_75), V_67)
    assert trace.flops == Linear(2 * 2 * 35 + 3 * 2 * 42, 0)

    def run(rows: int) -> Tensor:
        return F.linear(inputs(rows), A_72 @ B_25)

    with Trace(ROWS) as trace:
        run(ROWS)
    assert trace.flops == Linear(2 * 2 * 35, 3 * 2 * 7 * 2 * 5)
    assert trace.flops.at(4) == counted_both_ways(lambda: run(4).sum())


class Doubled(torch.autograd.Function):
    """x W^T, with two products more in its backward pass than there need be."""

    @staticmethod
    def forward(ctx, x, W):
        ctx.save_for_backward(x, W)
        return x @ W.T

    @staticmethod
    def backward(ctx, *gradients):
        (g,) = gradients
        x, W = ctx.saved_tensors
        return g @ W + g @ (2 * W), g.T @ x + (2 * g).T @ x


def test_a_backward_pass_of_its_own_is_run():
    W_75, V_55 = parameter(7, 5), parameter(5, 5)

    def run(rows: int) -> Tensor:
        return Doubled.apply(F.linear(inputs(rows), V_55), W_75)

    with Trace(ROWS) as trace:
        output = run(ROWS)
    trace.flops_of_one(output)
    assert trace.flops.at(1) == 2 * 2 * 25 + 5 * 2 * 35
    assert trace.flops.at(2) == counted_both_ways(lambda: run(2).sum())


TOKENS, SIDE = 128, 16
NAMES = {"paper": "comt", "table": "t", "scale": "smoke", "row": "a", "column": "b", "seed": 1}


def language(method: str, checkpointing: bool = False, **model) -> RunSpec:
    settings = Settings(
        model=ModelSettings(**{"size": "tiny", "layers": 3, **model}),
        data=DataSettings(tokenizer="bytes", sequence_length=TOKENS),
        train=TrainSettings(steps=1, activation_checkpointing=checkpointing),
    )
    return RunSpec(**NAMES, command="train-lm", method={"name": method}, settings=settings, data_fingerprint="none")


def images(method: str, **train) -> RunSpec:
    settings = ImageSettings(
        model=ResNetSettings(width=8, blocks=(1, 1)),
        data=ImageDataSettings(size=SIDE),
        train=ImageTrainSettings(**{"steps": 30, "batch_size": 4, **train}),
    )
    return RunSpec(**NAMES, command="train-resnet", method={"name": method}, settings=settings, data_fingerprint="none")


# Multiply-adds of one image: stem, two convolutions at full size, two at half, the projection, the classifier.
PIXELS = SIDE * SIDE
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
    if spec.command == "train-lm":
        given = torch.zeros(rows, TOKENS, dtype=torch.long)
    else:
        given = torch.zeros(rows, 3, SIDE, SIDE).to(memory_format=torch.channels_last)
    return kept_for(model, lambda: model.body(given))


@pytest.mark.parametrize(
    ("spec", "off", "head"),
    [
        # Fused attention keeps a few numbers a token that the meta device's does not, and unfused copies of the keys.
        (language("pre-ln"), 0.15, (TOKENS * 128, 258 * 128)),  # the gradients that the head's loss keeps
        (language("transponder"), 0.15, (TOKENS * 128, 258 * 128)),
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
        return memory_of(images("addition", batch_size=count, **train)).total

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
        assert inputs == pytest.approx(2 * more * TOKENS * 128, abs=2)
