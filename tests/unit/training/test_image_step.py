"""One update of an image classifier against the same update written out in float64, with a hand-written SGD."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tiny_runs import image_spec, pictures, train
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
