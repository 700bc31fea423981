"""Updates against the same written out: whole batches, in float64, with a hand-written optimiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_runs import image_spec, pictures, tiny_spec, train, training
from torch import Tensor, nn

from comt_cli.data.loader import TrainBatches
from comt_cli.data.order import sample_indices
from comt_cli.data.prepare import prepare
from comt_cli.data.split import IGNORE
from comt_cli.exchange.checkpoint import read_state
from comt_cli.layers.image_input import ImageInput
from comt_cli.models.build import materialise, model_of
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.training.update import learning_rate

CPU = torch.device("cpu")


def text_losses(spec: RunSpec, model: nn.Module) -> Iterator[Tensor]:
    """The loss of each step in turn, by the weights of then: no accumulation, no fused anything."""
    settings, rows = spec.settings.train, prepare(spec.settings.data).train
    for step in range(settings.steps):
        batch = rows.batch(sample_indices(spec.seed, step * settings.batch_size, settings.batch_size, len(rows)))
        logits = model(torch.from_numpy(batch.tokens)).flatten(0, 1)
        yield F.cross_entropy(logits, torch.from_numpy(batch.targets).flatten(), ignore_index=IGNORE)


def image_losses(spec: RunSpec, model: nn.Module) -> Iterator[Tensor]:
    """Micro-batches are normalised each by itself, here too."""
    settings, dataset = spec.settings.train, pictures()
    source = ImageInput(dataset, "train", spec.settings.data.augmentation, CPU)
    size = settings.micro_batch_size or settings.batch_size
    options = {"seed": spec.seed, "batch_size": settings.batch_size, "micro_batch_size": size}
    with TrainBatches(dataset.train, last_step=settings.steps, **options) as batches:
        for parts in batches:
            pairs = [source(part) for part in parts]
            losses = [F.cross_entropy(model(images.double()), labels, reduction="sum") for images, labels in pairs]
            yield sum(losses) / settings.batch_size


def adam(w: Tensor, g: Tensor, moments: dict[str, Tensor], settings: Any, rate: float, t: int, name: str) -> None:
    if settings.optimizer != "adam":
        w.mul_(1 - rate * settings.weight_decay)
    else:
        g = g + settings.weight_decay * w
    m, v = (moments.get(key, torch.zeros_like(w)) for key in "mv")
    m = moments["m"] = settings.beta1 * m + (1 - settings.beta1) * g
    v = moments["v"] = settings.beta2 * v + (1 - settings.beta2) * g * g
    m_hat, v_hat = m / (1 - settings.beta1**t), v / (1 - settings.beta2**t)
    w.sub_(rate * m_hat / (v_hat.sqrt() + settings.epsilon))


ROWS = {"attention.qkv.weight": 3, "mlp.gate_up.weight": 2}
"""Parameters that hold several matrices of equal heights, and how many."""


def muon(w: Tensor, g: Tensor, moments: dict[str, Tensor], settings: Any, rate: float, t: int, name: str) -> None:
    """Each projection's and each gate's matrix by itself; vectors, norms, the embedding and the head by AdamW."""
    if w.dim() < 2 or min(w.shape) == 1 or name in ("embedding.weight", "head.weight"):
        return adam(w, g, moments, settings, rate, t, name)
    m = moments["m"] = 0.95 * moments.get("m", torch.zeros_like(w)) + 0.05 * g
    parts = next((number for end, number in ROWS.items() if name.endswith(end)), 1)
    for w, u in zip(w.chunk(parts), (0.05 * g + 0.95 * m).chunk(parts), strict=True):  # noqa: B020, PLR1704 - views
        x = u / u.norm()
        for _ in range(5):
            squares = x @ x.T
            x = 3.4445 * x + (-4.7750 * squares + 2.0315 * squares @ squares) @ x
        w.mul_(1 - rate * settings.weight_decay).sub_(0.2 * math.sqrt(max(w.shape)) * rate * x)
    return None


def sgd(w: Tensor, g: Tensor, moments: dict[str, Tensor], settings: Any, rate: float, t: int, _: str) -> None:
    g = g + settings.weight_decay * w
    velocity = moments["v"] = settings.momentum * moments["v"] + g if t > 1 else g
    w.sub_(rate * (g + settings.momentum * velocity if settings.nesterov else velocity))


def assert_as_written_out(spec: RunSpec, runs: Path, losses_of: Callable[..., Any], update: Any) -> RunDirectory:
    """Losses, norms before clipping, those of every convolution, and weights. fp32 against float64: 1e-7 a sum, 1e-5
    after a few updates."""
    settings, model = spec.settings.train, model_of(spec)
    materialise(model, CPU, spec.seed)
    model.double()
    weights = dict(model.named_parameters())
    moments: dict[str, dict[str, Tensor]] = {name: {} for name in weights}
    losses, norms, of_convolutions = [], [], []
    for step, loss in enumerate(losses_of(spec, model)):
        gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        each = {name: float(gradient.square().sum().sqrt()) for name, gradient in gradients.items()}
        losses.append(loss.item())
        norms.append(math.hypot(*each.values()))
        of_convolutions.append({name: norm for name, norm in each.items() if weights[name].dim() == 4})
        scale = min(1.0, settings.gradient_clipping / norms[-1]) if settings.gradient_clipping else 1.0
        with torch.no_grad():
            for name, weight in weights.items():
                rate = learning_rate(settings, step)
                update(weight, gradients[name] * scale, moments[name], settings, rate, step + 1, name)
    directory = train(spec, runs)
    lines = [line for line in directory.metrics() if "loss" in line]
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-5)
    assert [line["gradient_norm"] for line in lines] == pytest.approx(norms, rel=1e-4)
    if settings.gradient_clipping:
        assert min(norms) > 2 * settings.gradient_clipping, "nothing would be clipped"
    for line in directory.gradients() if update is sgd else ():
        assert line["norms"] == pytest.approx(of_convolutions[line["step"] - 1], rel=1e-4)
    found, state = read_state(directory.checkpoint_file)["model"], model.state_dict()
    assert found.keys() == state.keys()
    for name, tensor in state.items():
        assert (found[name].double() - tensor).abs().max() <= 2e-5, name
    return directory


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"micro_batch_size": 1, "gradient_clipping": 0.3},
        {"optimizer": "adamw", "weight_decay": 0.5, "micro_batch_size": 4},
        {"weight_decay": 0.5, "schedule": "noam"},
        {"optimizer": "muon", "weight_decay": 0.5, "micro_batch_size": 4, "gradient_clipping": 0.3},
        {"beta1": 0.5, "beta2": 0.9, "schedule": "linear", "activation_checkpointing": True},
    ],
    ids=str,
)
def test_a_language_model(tiny_corpus, tmp_path, options):
    """Ragged rows, so that a mean over micro-batches would differ from the mean over tokens by per cents. A large
    epsilon: with 1e-8 Adam turns the sign of a gradient of 1e-9, which rounding decides, into a whole step."""
    common = {"steps": 4, "warmup_steps": 1, "learning_rate": 1e-3, "log_every": 1, "epsilon": 1e-4}
    spec = tiny_spec(tiny_corpus, method="transponder", **common | options)
    assert_as_written_out(spec, tmp_path, text_losses, muon if options.get("optimizer") == "muon" else adam)


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
def test_an_image_classifier(tmp_path, options):
    common = {"steps": 4, "log_every": 1, "gradient_norms_every": 2, "learning_rate": 0.02}
    spec = image_spec(method="comt-sliding-window", **common | options)
    directory = assert_as_written_out(spec, tmp_path, image_losses, sgd)
    assert [line["step"] for line in directory.gradients()] == [1, 2, 4]


@pytest.mark.parametrize(
    ("precision", "kept"),
    [("fp32", torch.float32), ("bf16-mixed", torch.float32), ("bf16-pure", torch.bfloat16)],
)
def test_precisions(tiny_corpus, tmp_path, precision, kept):
    """Types of weights and moments; products of bf16 have 8 bits: losses of 5 agree to some 1e-2, and not to 1e-6."""
    run = training(tiny_spec(tiny_corpus, steps=5, precision=precision), tmp_path)
    result = run.run()
    moments = [each for state in run.optimizer.state.values() for key, each in state.items() if key != "step"]
    state = read_state(run.directory.checkpoint_file)
    assert {tensor.dtype for tensor in (*state["model"].values(), *moments)} == {kept}
    assert state["optimizer"] is None
    exact = train(tiny_spec(tiny_corpus, steps=5), tmp_path / "exact").result()
    assert result["loss"] == pytest.approx(exact["loss"], rel=2e-2)
    assert (result["loss"] == pytest.approx(exact["loss"], rel=1e-7)) == (precision == "fp32")
