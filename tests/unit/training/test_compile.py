"""`torch.compile` is an execution detail: a compiled step has the loss and the gradients of an eager one."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch._inductor.config
from method_cases import METHODS, TOKENS, built, wiring_of
from tiny_runs import image_spec, train
from torch._dynamo.utils import counters

from comt_cli.exchange.checkpoint import read_state
from comt_cli.layers.gates import ComtGate, TransponderGate
from comt_cli.methods.base import Wiring, residual_connection
from comt_cli.models.build import empty_network, materialise
from comt_cli.tasks.settings.language import ModelSettings
from comt_cli.training.objective import SummedLoss


@pytest.fixture(autouse=True)
def forget_what_was_compiled():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@torch._inductor.config.patch({"cpp.simdlen": 0})
def test_a_compiled_step_has_the_eager_ones_loss_and_gradients():
    """The slowest of the tests, since a C++ compiler runs: hence one layer of width 16, with a CoMT gate and
    two of Transponder's, and code without the processor's vectors. fp32, other orders of summing: 1e-5 of the largest
    gradient.
    """
    comt = partial(ComtGate.at, hidden=2, init="torch-linear")
    transponder = partial(TransponderGate.at, rank=3, init="torch-linear")
    gates = {"q_proj": comt, "o_proj": transponder, "down_proj": transponder}
    settings = ModelSettings(size="tiny", width=16, ffn_width=24, layers=1, heads=2)
    tokens = torch.randint(30, (2, 12), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(-1, 1)
    targets[0, 7:] = -100
    results = []
    for compiled in (False, True):
        model = empty_network(settings, Wiring(residual_connection("pre-norm"), gates), vocabulary=30)
        materialise(model, torch.device("cpu"), 0)
        loss = SummedLoss(model)
        if compiled:
            loss.compile_model()
        value = loss(tokens, targets)
        results.append((value.detach(), torch.autograd.grad(value, list(model.parameters()))))
    (eager, eager_gradients), (fast, fast_gradients) = results
    assert fast.item() == pytest.approx(eager.item(), rel=1e-6)
    for mine, expected in zip(fast_gradients, eager_gradients, strict=True):
        assert (mine - expected).abs().max() <= 1e-5 * expected.abs().max() + 1e-7
    assert counters["stats"]["unique_graphs"] == 1, "it was not compiled, or not as one graph"


@pytest.mark.parametrize(
    "name", ["denseformer", "resformer-learned", "mhc", "muddformer+comt", "prores", "value-embeddings", "smear"]
)
def test_a_state_that_is_more_than_a_stream_is_compiled_as_one_graph(name):
    """By the compiler's front end, which follows named tuples, q/k/v inputs and values of earlier layers, or
    says what it cannot follow. Mixtures of streams have another form there."""
    settings = ModelSettings(size="tiny", width=24, ffn_width=24, layers=2, heads=2)
    model = built(wiring_of(METHODS[name]), settings)
    with torch.no_grad():
        compiled = torch.compile(model, backend="eager", fullgraph=True)(TOKENS)
        torch.testing.assert_close(compiled, model(TOKENS), rtol=0, atol=1e-6)


def test_a_compiled_image_run_trains_and_evaluates_as_an_eager_one(tmp_path, monkeypatch):
    """Through the compiler's front end alone (`aot_eager`), where a graph would break or a shape be refused; language
    models are compiled so among the golden curves. The running statistics of a ResNet change within its graph;
    evaluating them is another one."""
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: compiler(function, backend="aot_eager", **how))
    options = {"steps": 4, "log_every": 1, "learning_rate": 0.01, "method": "comt-sliding-window"}
    options["model"] = {"blocks": (1,)}
    eager, compiled = (train(image_spec(compile=on, **options), tmp_path / str(on)) for on in (False, True))
    for first, second in zip(eager.metrics(), compiled.metrics(), strict=True):
        assert second == pytest.approx(first, rel=1e-4), first["step"]
    states = [read_state(directory.checkpoint_file)["model"] for directory in (eager, compiled)]
    for name, tensor in states[0].items():
        assert torch.allclose(states[1][name], tensor, rtol=1e-4, atol=1e-6), name
    # Training, and evaluation by batches of 8 and of the 4 that are left.
    assert counters["stats"]["unique_graphs"] == 3
