"""What `train.observe_every` logs: right values of gates and residual stream, and a run that is not changed by them."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch._dynamo
from foreign_tokens import byte_level, write_tokenizer
from same_bits import Reason, assert_same_bits
from tiny_runs import (
    CIDER,
    PROSE,
    caption_spec,
    glue_spec,
    image_spec,
    masked_spec,
    pair_spec,
    tiny_spec,
    train,
    training,
)
from torch._dynamo.utils import counters

from comt_cli.exchange.checkpoint import read_state
from comt_cli.library.values import gate_values
from comt_cli.models.recorded import recorded
from comt_cli.runs.logs import is_observed
from comt_cli.runs.plan import RunSpec
from comt_cli.training import loop, record
from comt_cli.training.events import Event, Note
from comt_cli.training.observation import ROWS, observe
from comt_cli.training.tasks import TaskRun

Spec = Callable[..., RunSpec]
EVERY: dict[str, Spec] = {
    "language": lambda corpus, **train: tiny_spec(corpus, method="transponder", **train),
    "masked": lambda corpus, **train: masked_spec(corpus, method="comt", **train),
    "glue": lambda corpus, **train: glue_spec(corpus, method="comt", **train),
    "translation": lambda _, **train: pair_spec(method="comt", **train),
    "captions": lambda _, **train: caption_spec(method="comt", **train),
    "drawn captions": lambda _, **train: caption_spec(method="comt", **train, **CIDER),
    "images": lambda _, **train: image_spec(method="comt-sliding-window", **train),
    "streams": lambda corpus, **train: tiny_spec(corpus, method="mhc", **train),
}


@pytest.mark.parametrize("name", EVERY)
def test_a_run_is_not_changed_to_the_bit(name: str, tiny_corpus: str, tmp_path: Path) -> None:
    """Every line, weight, result and random state: an observation between two steps has no effect on the second."""
    plain, watched = (
        EVERY[name](tiny_corpus, steps=6, log_every=1, evaluate_every=3, **more) for more in ({}, {"observe_every": 4})
    )
    assert watched.id == plain.id
    first, second = train(plain, tmp_path / "plain"), train(watched, tmp_path / "watched")
    lines = second.metrics()
    observed = [line for line in lines if any(map(is_observed, line))]
    assert [line for line in lines if line not in observed] == first.metrics()
    assert [line["step"] for line in observed] == [1, 4, 6]
    assert len({tuple(line) for line in observed}) == 1
    states = [read_state(each.checkpoint_file) for each in (first, second)]
    assert_same_bits(states[0]["model"], states[1]["model"], Reason.SAME_RUN, "the weights")
    assert_same_bits(states[0]["random"]["torch"], states[1]["random"]["torch"], Reason.SAME_RUN, "the random state")


def ready(spec: RunSpec, folder: Path) -> TaskRun[Any]:
    """A run's task with its model at the start."""
    run = training(spec, folder)
    run._load()
    return run.task


def test_observing_leaves_no_trace(tiny_corpus: str, tmp_path: Path) -> None:
    """Parts are marked as computed by kernels, which would bypass what is recorded; none is built here."""
    task = ready(tiny_spec(tiny_corpus, method="transponder"), tmp_path)
    modules = [*task.objective.modules()]
    for module in modules:
        if hasattr(module, "fused"):
            module.fused = True
    before = [dict(vars(module)) for module in modules]
    assert "gate_mean.q_proj.channel" in observe(task)
    assert [dict(vars(module)) for module in modules] == before
    assert all(parameter.grad is None for parameter in task.model.parameters())


# ---- values, by other ways


def expected_gates(frames: list[pd.DataFrame], low: float, high: float, branches: bool) -> dict[str, float]:
    """Mean and saturated share by site and kind, from values of tokens."""
    frame, margin, found = pd.concat(frames), 0.05 * (high - low), {}
    keys = ["stack", "part", "site", "kind"] if branches else ["site", "kind"]
    for place, own in frame.groupby(keys):
        layers = [layer["value"].to_numpy(float) for _, layer in own.groupby("layer")]
        name = ".".join(map(str, place))
        found[f"gate_mean.{name}"] = np.mean([layer.mean() for layer in layers])
        near = [(layer < low + margin) | (layer > high - margin) for layer in layers]
        found[f"gate_saturation.{name}"] = np.mean([layer.mean() for layer in near])
    return found


def saturate(task: TaskRun[Any]) -> None:
    """Multiply the gates' matrices, so that some of their values are near the ends of the range."""
    with torch.no_grad():
        for name, parameter in task.model.named_parameters():
            if ".gates." in name:
                parameter.mul_(8.0)


def test_gates_of_a_language_model_are_those_of_its_tokens(tiny_corpus: str, tmp_path: Path) -> None:
    task = ready(tiny_spec(tiny_corpus, method="transponder"), tmp_path)
    saturate(task)
    found = observe(task)
    rows = task.trial_batch(ROWS).tokens
    texts = [[int(token) for token in row if token] for row in rows]  # each alone, without padding
    assert len({*map(len, texts)}) > 1, "rows without padding prove less"
    expected = expected_gates([gate_values(task.model, [text]) for text in texts], 0.0, 2.0, branches=False)
    gates = {key: value for key, value in found.items() if key.startswith("gate_")}
    assert gates == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert 0 < gates["gate_saturation.q_proj.scalar"] < 1


def test_a_word_at_the_id_that_fills_rows_is_no_padding(tiny_corpus: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "bpe", byte_level([PROSE]))
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"{number}! {PROSE[number:60]}!")
    data = {"corpus": f"files:{texts}/*.txt", "tokenizer": str(tmp_path / "bpe"), "vocabulary": 300}
    task = ready(tiny_spec(tiny_corpus, method="transponder", data=data), tmp_path)
    saturate(task)
    batch = task.trial_batch(ROWS)
    rows = [row[: 1 + (own >= 0).sum()].tolist() for row, own in zip(batch.tokens, batch.targets, strict=True)]
    assert all(0 in row for row in rows)
    assert len({*map(len, rows)}) > 1
    expected = expected_gates([gate_values(task.model, [row]) for row in rows], 0.0, 2.0, branches=False)
    gates = {key: value for key, value in observe(task).items() if key.startswith("gate_")}
    assert gates == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_gates_of_a_translator_are_those_of_the_tokens_that_they_read(tmp_path: Path) -> None:
    task = ready(pair_spec(method="comt"), tmp_path)
    saturate(task)
    batch, frames = task.trial_batch(1), []
    for source, target in zip(batch.source, batch.target_in, strict=True):
        pair = {"input_ids": [[int(n) for n in source if n]], "decoder_input_ids": [[int(n) for n in target if n]]}
        frames.append(gate_values(task.model, pair))
    gates = {key: value for key, value in observe(task).items() if key.startswith("gate_")}
    assert {len(row[row > 0]) for row in batch.source} != {batch.source.shape[1]}
    assert gates == pytest.approx(expected_gates(frames, 0.0, 1.0, branches=True), rel=1e-4, abs=1e-6)


def test_stream_and_branch_are_those_of_every_residual_add(tiny_corpus: str, tmp_path: Path) -> None:
    """Of pre-norm blocks the branch is the difference of the streams after and before the add."""
    task = ready(tiny_spec(tiny_corpus, method="pre-ln"), tmp_path)
    tokens = torch.from_numpy(task.trial_batch(ROWS).tokens)
    connections = {part: [getattr(block, f"{part}_connection") for block in task.model.blocks]
                   for part in ("attention", "mlp")}  # fmt: skip
    with torch.no_grad(), recorded([each for own in connections.values() for each in own], "step") as calls:
        task.model(tokens)
    expected = {}
    for part, own in connections.items():
        measured = []
        for connection in own:
            (state, _), after = calls[connection]
            x, F = state.stream[tokens > 0].double(), (after.stream - state.stream)[tokens > 0].double()
            cosine = (x * F).sum(-1) / (x.square().sum(-1) * F.square().sum(-1)).sqrt()
            measured.append([x.square().sum(-1).sqrt().mean(), F.square().sum(-1).sqrt().mean(), cosine.mean()])
        for name, value in zip(("stream_norm", "branch_norm", "branch_cosine"), np.mean(measured, 0), strict=True):
            expected[f"{name}.{part}"] = float(value)
    assert observe(task) == pytest.approx(expected, rel=1e-3)  # x + F - x rounds


def test_a_post_norm_branch_is_what_is_added_before_the_norm(tiny_corpus: str, tmp_path: Path) -> None:
    task = ready(tiny_spec(tiny_corpus, method="post-ln", model={"layers": 1}), tmp_path)
    tokens = torch.from_numpy(task.trial_batch(ROWS).tokens)
    block: Any = task.model.blocks[0]
    with torch.no_grad(), recorded([block.mlp.down]) as outputs:
        task.model(tokens)
    (F,) = outputs[block.mlp.down][1]
    assert observe(task)["branch_norm.mlp"] == pytest.approx(float(F[tokens > 0].norm(dim=-1).mean()), rel=1e-4)


@pytest.mark.parametrize(
    ("method", "model"),
    [("comt-sliding-window", {}), ("addition", {"size": "preact-resnet110"}), ("sas-resnet", {})],
)
def test_maps_are_observed_where_skip_path_and_branch_are_added(
    method: str, model: dict[str, Any], tmp_path: Path
) -> None:
    """Pixel by pixel, over channels; the addition of the plain network is part of its last convolution's module."""
    task = ready(image_spec(method=method, model=model), tmp_path)
    images, _ = task.inputs(task.trial_batch(ROWS))
    expected: dict[str, list[float]] = {}
    x_BCHW = images
    network: Any = task.model.eval()
    with torch.no_grad():
        x_BCHW = network.pool(network.stem(x_BCHW))
        for block in network.blocks:
            y_BCHW = block(x_BCHW)
            if hasattr(block, "activates_both"):
                h = block.norm1(x_BCHW)
                skip = h if block.activates_both else x_BCHW
                skip = skip if block.shortcut is None else block.shortcut(skip)
                F_BCHW = block.conv2(block.conv1(h))
            else:
                skip = x_BCHW if block.shortcut is None else block.shortcut(x_BCHW)
                h = block.conv1(x_BCHW)
                F_BCHW = block.conv2.norm(block.conv2.convolution(h))
            both = [each.permute(0, 2, 3, 1).reshape(-1, each.shape[1]).double().numpy() for each in (skip, F_BCHW)]
            norms = [np.sqrt((each**2).sum(1)) for each in both]
            expected.setdefault("stream_norm.map", []).append(norms[0].mean())
            expected.setdefault("branch_norm.map", []).append(norms[1].mean())
            product = norms[0] * norms[1]
            cosine = np.divide((both[0] * both[1]).sum(1), product, out=np.zeros_like(product), where=product > 0)
            expected.setdefault("branch_cosine.map", []).append(cosine.mean())
            if method == "comt-sliding-window":
                for name, read in (("conv1", x_BCHW), ("conv2", h)):
                    gate = block.convolutions[name].gate
                    if gate is not None:
                        expected.setdefault(f"gate_mean.{name}.scalar", []).append(float(gate(read).mean()))
            x_BCHW = y_BCHW
    task.model.train()
    found = {key: value for key, value in observe(task).items() if not key.startswith("gate_saturation")}
    assert found == pytest.approx({key: float(np.mean(own)) for key, own in expected.items()}, rel=1e-3, abs=1e-5)


def test_values_that_are_not_finite_are_null(tiny_corpus: str, tmp_path: Path) -> None:
    task = ready(tiny_spec(tiny_corpus), tmp_path)
    with torch.no_grad():
        task.model.blocks[0].attention.qkv.weight.fill_(math.inf)  # type: ignore[union-attr]
    found = observe(task)
    assert found["stream_norm.mlp"] is None
    assert found["gate_mean.q_proj.scalar"] is None or math.isfinite(found["gate_mean.q_proj.scalar"])


# ---- compiled runs, and the time that it takes


def test_a_compiled_run_is_observed_outside_of_its_graphs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compiled code would call none of what is recorded; and recording must not make it compile again."""
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: compiler(function, backend="aot_eager", **how))
    options = {"method": "comt-sliding-window", "steps": 4, "log_every": 1, "model": {"blocks": (1,)}}
    graphs, runs = [], []
    for more in ({}, {"observe_every": 1}):
        torch._dynamo.reset()
        counters.clear()
        runs.append(train(image_spec(compile=True, **options, **more), tmp_path / f"{len(runs)}"))
        graphs.append(counters["stats"]["unique_graphs"])
    torch._dynamo.reset()
    assert graphs[0] == graphs[1] > 0
    observed = [line for line in runs[1].metrics() if any(map(is_observed, line))]
    assert [line["step"] for line in observed] == [1, 2, 3, 4]
    assert all("gate_mean.conv1.scalar" in line and "branch_norm.map" in line for line in observed)
    assert [line for line in runs[1].metrics() if line not in observed] == runs[0].metrics()


def test_the_time_of_observations_is_no_training_time(
    tiny_corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on in observations alone."""
    seconds = [0.0]

    def slow(task: TaskRun[Any]) -> dict[str, float | None]:
        seconds[0] += 100
        return observe(task)

    monkeypatch.setattr(loop, "observe", slow)
    for module in (loop, record):
        monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: seconds[0]))
    directory = train(tiny_spec(tiny_corpus, steps=4, log_every=1, observe_every=1), tmp_path)
    result = directory.result()
    assert result is not None
    assert (seconds[0], result["train_seconds"]) == (400, 0)


def test_a_note_says_when_it_takes_more_than_a_hundredth(tiny_corpus: str, tmp_path: Path) -> None:
    heard: list[Event] = []
    train(tiny_spec(tiny_corpus, steps=6, observe_every=2), tmp_path, listener=heard.append)
    (said,) = (event.text for event in heard if isinstance(event, Note))
    assert "with observe_every 2 more than 1% of the time; train.observe_every=" in said
