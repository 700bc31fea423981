"""One update against the same update written out: the whole batch at once, in float64, with a hand-written Adam."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tiny_runs import tiny_spec, train, training
from torch import Tensor

from comt_cli.data.order import sample_indices
from comt_cli.data.prepare import prepare
from comt_cli.data.split import IGNORE
from comt_cli.exchange.checkpoint import read_state
from comt_cli.models.build import materialise, model_of
from comt_cli.runs.plan import RunSpec
from comt_cli.training.optimisation import learning_rate


def naive_run(spec: RunSpec) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Losses, gradient norms before clipping, and final weights: no accumulation, no fused anything, all in float64."""
    settings = spec.settings.train
    model = model_of(spec)
    materialise(model, torch.device("cpu"), spec.seed)
    model.double()
    rows = prepare(spec.settings.data).train
    weights = list(model.parameters())
    m, v = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    losses, norms = [], []
    for step in range(settings.steps):
        batch = rows.batch(sample_indices(spec.seed, step * settings.batch_size, settings.batch_size, len(rows)))
        logits = model(torch.from_numpy(batch.tokens))
        loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.targets).flatten(), ignore_index=IGNORE)
        gradients = torch.autograd.grad(loss, weights)
        norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
        if settings.gradient_clipping:
            gradients = [gradient * min(1.0, settings.gradient_clipping / norm) for gradient in gradients]
        rate, t = learning_rate(settings, step), step + 1
        with torch.no_grad():
            for w, g, m_w, v_w in zip(weights, gradients, m, v, strict=True):
                if settings.optimizer == "adamw":
                    w.mul_(1 - rate * settings.weight_decay)
                else:
                    g = g + settings.weight_decay * w  # noqa: PLW2901
                m_w.mul_(settings.beta1).add_(g, alpha=1 - settings.beta1)
                v_w.mul_(settings.beta2).add_(g * g, alpha=1 - settings.beta2)
                m_hat, v_hat = m_w / (1 - settings.beta1**t), v_w / (1 - settings.beta2**t)
                w.sub_(rate * m_hat / (v_hat.sqrt() + settings.epsilon))
        losses.append(loss.item())
        norms.append(norm)
    return losses, norms, {name: tensor.detach() for name, tensor in model.named_parameters()}


OPTIONS = {"steps": 4, "warmup_steps": 1, "learning_rate": 1e-3, "log_every": 1, "epsilon": 1e-4}
"""A large epsilon: with 1e-8 Adam turns the sign of a gradient of 1e-9, which rounding decides, into a whole step."""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"micro_batch_size": 1, "gradient_clipping": 0.3},
        {"optimizer": "adamw", "weight_decay": 0.5, "micro_batch_size": 4},
        {"weight_decay": 0.5, "schedule": "noam"},
        {"beta1": 0.5, "beta2": 0.9, "schedule": "linear", "activation_checkpointing": True},
    ],
    ids=str,
)
def test_losses_norms_and_weights(tiny_corpus, tmp_path, options):
    """Ragged rows, so that a mean over micro-batches would differ from the mean over tokens by per cents. fp32
    against float64: 1e-7 a sum, 1e-5 after four updates."""
    spec = tiny_spec(tiny_corpus, method="transponder", **OPTIONS | options)
    losses, norms, weights = naive_run(spec)
    directory = train(spec, tmp_path)
    lines = [line for line in directory.metrics() if "loss" in line]
    assert [line["loss"] for line in lines] == pytest.approx(losses, rel=1e-5)
    assert [line["gradient_norm"] for line in lines] == pytest.approx(norms, rel=1e-4)
    if clipping := options.get("gradient_clipping"):
        assert min(norms) > 2 * clipping, "nothing would be clipped"
    state = read_state(directory.checkpoint_file)["model"]
    assert state.keys() == weights.keys()
    for name, weight in weights.items():
        assert (state[name].double() - weight).abs().max() <= 2e-5, name


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
