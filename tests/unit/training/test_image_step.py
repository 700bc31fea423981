"""One update of an image classifier against the same update written out in float64, with a hand-written SGD."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from same_bits import Reason, assert_same_bits
from tiny_runs import image_spec, pictures, train, training
from torch import Tensor

from comt_cli.data.loader import TrainBatches
from comt_cli.exchange.checkpoint import read_state
from comt_cli.layers.image_input import ImageInput
from comt_cli.models.build import materialise, model_of
from comt_cli.runs.plan import RunSpec
from comt_cli.training.optimisation import learning_rate

CPU = torch.device("cpu")
ADDED_UP = 1e-5
"""fp32 against float64: 1e-7 a sum, 1e-5 after a few updates."""


def naive_run(spec: RunSpec) -> tuple[list[float], list[float], list[dict[str, float]], dict[str, Tensor]]:
    """Losses, gradient norms before clipping, those of every convolution, and the final state: all in float64."""
    settings = spec.settings.train
    model = model_of(spec)
    materialise(model, CPU, spec.seed)
    model.double()
    dataset = pictures()
    source = ImageInput(dataset, "train", spec.settings.data.augmentation, CPU)
    weights = dict(model.named_parameters())
    velocity: dict[str, Tensor] = {}
    losses, norms, each = [], [], []
    size = settings.micro_batch_size or settings.batch_size
    options = {"seed": spec.seed, "batch_size": settings.batch_size, "micro_batch_size": size}
    with TrainBatches(dataset.train, last_step=settings.steps, **options) as batches:
        for step, parts in enumerate(batches):
            loss = torch.zeros((), dtype=torch.float64)
            for part in parts:
                images, labels = source(part)
                loss = loss + F.cross_entropy(model(images.double()), labels, reduction="sum") / settings.batch_size
            gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
            norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
            each.append({name: float(g.square().sum().sqrt()) for name, g in gradients.items() if g.dim() == 4})
            scale = min(1.0, settings.gradient_clipping / norm) if settings.gradient_clipping else 1.0
            rate = learning_rate(settings, step)
            with torch.no_grad():
                for name, weight in weights.items():
                    g = gradients[name] * scale + settings.weight_decay * weight
                    velocity[name] = settings.momentum * velocity[name] + g if name in velocity else g
                    step_by = g + settings.momentum * velocity[name] if settings.nesterov else velocity[name]
                    weight.sub_(rate * step_by)
            losses.append(loss.item())
            norms.append(norm)
    return losses, norms, each, {name: tensor.detach() for name, tensor in model.state_dict().items()}


OPTIONS = {"steps": 4, "log_every": 1, "gradient_norms_every": 2, "learning_rate": 0.02}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"micro_batch_size": 4, "gradient_clipping": 0.1},
        {"weight_decay": 0.05, "nesterov": True, "schedule": "cosine", "warmup_steps": 1},
        {"momentum": 0.0, "schedule": "step", "milestones": (1, 3)},
        {"momentum": 0.5, "schedule": "constant", "warmup_steps": 2, "warmup_learning_rate": 0.005},
    ],
    ids=str,
)
def test_losses_norms_and_weights(tmp_path, options):
    """Micro-batches are normalised each by itself, also in the naive run."""
    spec = image_spec(method="comt-sliding-window", **OPTIONS | options)
    losses, norms, each, state = naive_run(spec)
    directory = train(spec, tmp_path)
    lines = [line for line in directory.metrics() if "loss" in line]
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=ADDED_UP)
    assert [line["gradient_norm"] for line in lines] == pytest.approx(norms, rel=1e-4)
    if clipping := options.get("gradient_clipping"):
        assert min(norms) > 2 * clipping, "nothing would be clipped"
    logged = directory.gradients()
    assert [line["step"] for line in logged] == [1, 2, 4]
    for line in logged:
        assert line["norms"] == pytest.approx(each[line["step"] - 1], rel=1e-4)
    found = read_state(directory.checkpoint_file)["model"]
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert (found[name].double() - tensor).abs().max() <= 2e-5, name


@pytest.mark.parametrize(
    ("micro_batch_size", "local_rows", "said"),
    [(None, 8, None), (None, 4, "few as 4 images"), (2, 4, None), (4, 2, "few as 2"), (4, 6, "few as 2 images")],
)
def test_a_share_that_batch_norms_see_otherwise_is_said(tmp_path, micro_batch_size, local_rows, said):
    spec = image_spec(batch_size=24 if local_rows == 6 else 8, micro_batch_size=micro_batch_size)
    found = training(spec, tmp_path).task.caution(local_rows)
    assert found is None if said is None else found is not None and said in found


def test_norms_are_of_every_convolution_and_only_where_asked_for(tmp_path):
    directory = train(image_spec(method="comt-sliding-window", steps=2, gradient_norms_every=1), tmp_path)
    names = {
        name
        for name, tensor in read_state(directory.checkpoint_file)["model"].items()
        if tensor.dim() == 4
    }  # fmt: skip
    assert {tuple(line["norms"]) for line in directory.gradients()} == {tuple(directory.gradients()[0]["norms"])}
    assert set(directory.gradients()[0]["norms"]) == names
    assert any(name.endswith("gate.filters") for name in names)
    assert any("stem" in name for name in names)
    assert not train(image_spec(steps=2), tmp_path).gradients_file.exists()


def test_precisions(tmp_path):
    exact = train(image_spec(steps=5), tmp_path).result()
    for precision, kept in (("bf16-mixed", torch.float32), ("bf16-pure", torch.bfloat16)):
        directory = train(image_spec(steps=5, precision=precision), tmp_path)
        state = read_state(directory.checkpoint_file)["model"]
        assert {tensor.dtype for name, tensor in state.items() if "running" not in name} == {kept}
        assert {tensor.dtype for name, tensor in state.items() if "running" in name} == {torch.float32}
        # bf16 has 8 bits: losses of 2 agree to some 1e-2, and not to 1e-6.
        assert directory.result()["loss"] == pytest.approx(exact["loss"], rel=5e-2)
        assert directory.result()["loss"] != pytest.approx(exact["loss"], rel=1e-6)


def test_model_and_images_lie_channels_last(tmp_path):
    run = training(image_spec(), tmp_path)
    with contextlib.ExitStack() as held:
        run.directory.create(run.spec)
        run._set_up(held)
        images, _ = run.task.inputs(run.task.trial_batch(4))
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert all(
            weight.is_contiguous(memory_format=torch.channels_last)
            for weight in run.model.parameters()
            if weight.dim() == 4
        )


def test_a_trial_pass_leaves_everything_as_it_was(tmp_path):
    run = training(image_spec(), tmp_path)
    with contextlib.ExitStack() as held:
        run.directory.create(run.spec)
        run._set_up(held)
        before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
        run.updater.warm_up([8, 3], [4])
        after = run.model.state_dict()
        assert any("running_mean" in name for name in before)
        assert_same_bits(after, before, Reason.MOVED)
        assert all(parameter.grad is None for parameter in run.model.parameters())


def test_what_is_written_down(tmp_path):
    spec = image_spec(steps=10, log_every=4, evaluate_every=5)
    directory = train(spec, tmp_path)
    assert [(line["step"], "loss" in line) for line in directory.metrics()] == [
        (1, True), (4, True), (5, False), (8, True), (10, True), (10, False),
    ]  # fmt: skip
    assert [line["images"] for line in directory.metrics() if "loss" in line] == [8, 32, 64, 80]
    result, last = directory.result(), directory.metrics()[-1]
    assert (result["state"], result["images"]) == ("done", 80)
    assert result["loss"] == last["validation_loss"]
    assert result["accuracy"] == last["validation_accuracy"]
    assert result["top5_accuracy"] == last["validation_top5_accuracy"]
    assert result["evaluation"] == {"samples": 20, "images": 20, "batch_size": 8, "processes": 1}
    assert result["images_per_second"] == pytest.approx(80 / result["train_seconds"], rel=0.05)
    assert result["mfu"] is None, "the peak of a CPU is not known"
    assert not {"tokens", "tokens_per_second", "perplexity"} & result.keys()
    assert all("images_per_second" in line for line in directory.timings())
    header = directory.metrics_table.read_text().splitlines()[0]
    assert header == (
        "step,images,loss,learning_rate,gradient_norm,validation_loss,validation_accuracy,validation_top5_accuracy"
    )
    state = read_state(directory.checkpoint_file)
    assert state["classes"] == list("abcdefghij")
    assert (state["mean"], state["std"], state["size"]) == ([0.25, 0.24, 0.25], [0.17, 0.15, 0.15], 8)
    assert not {"tokenizer", "vocabulary"} & state.keys()


def test_it_learns(tmp_path):
    """Ten textures: chance is 10 %."""
    settings = {"steps": 80, "learning_rate": 0.2, "batch_size": 16, "augmentation": "none"}
    result = train(image_spec(method="comt-pixel", **settings), tmp_path).result()
    assert result["accuracy"] >= 60
    assert result["loss"] < 0.6 * math.log(10)
    assert result["top5_accuracy"] >= result["accuracy"]


def test_two_seeds_see_other_images_in_another_order(tmp_path):
    losses = [
        [line["loss"] for line in train(image_spec(seed=seed, steps=2, log_every=1), tmp_path).metrics()[:2]]
        for seed in (1, 2)
    ]
    assert not np.isclose(losses[0], losses[1]).any()
