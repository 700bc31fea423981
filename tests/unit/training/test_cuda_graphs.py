"""`train.cuda_graphs`, as far as it can be tried without a GPU: what it goes with, and that nothing which training
still needs lies in the graphs' memory when the next pass overwrites it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch._inductor.config
from tiny_runs import StopAt, Stopped, assert_same_run, image_spec, tiny_spec, train, training
from torch import Tensor, nn

from comt_cli.campaign.executor import check_training
from comt_cli.errors import UserError
from comt_cli.tasks.settings.language import TrainSettings
from comt_cli.training import tasks
from comt_cli.training.events import Event, Note
from comt_cli.training.objective import CAPTURED
from comt_cli.training.parallel import World

ON = {"compile": True, "cuda_graphs": True}
OFF = {"compile": True, "cuda_graphs": False}
SHORT = {"steps": 6, "log_every": 1, "evaluate_every": 2}


class Graphs:
    """In the place of the compiler: leaves functions as they are, but gradients, and what evaluations put out, lie in
    memory which the next pass overwrites, as with CUDA graphs."""

    def __init__(self) -> None:
        self.options: list[object] = []
        self.passes = 0
        self.gradients: dict[nn.Parameter, Tensor] = {}
        self.outputs: list[Tensor] = []

    def compile(self, function: Any, *, options: object = None, **_: bool) -> Callable[..., Tensor]:
        self.options.append(options)
        if options is None:
            return function
        for parameter in function.__self__.parameters():
            parameter.register_hook(partial(self._kept, parameter))

        def call(*inputs: Tensor) -> Tensor:
            output = function(*inputs)
            if not torch.is_grad_enabled():
                self.outputs.append(output)
            return output

        return call

    def begin(self) -> None:
        self.passes += 1
        for memory in (*self.gradients.values(), *self.outputs):
            memory.fill_(torch.nan)
        self.outputs.clear()

    def _kept(self, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
        memory = self.gradients.setdefault(parameter, torch.empty_like(gradient))
        memory.copy_(gradient)
        return memory.view_as(memory)  # another tensor on it, which autograd makes `.grad`


@pytest.fixture
def graphs(monkeypatch):
    found = Graphs()
    monkeypatch.setattr(tasks, "is_captured", lambda settings, _: bool(settings.captures))
    monkeypatch.setattr(torch, "compile", found.compile)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", found.begin)
    return found


@pytest.mark.parametrize(
    ("kind", "micro_batches", "changed"),
    [("text", 1, {}), ("text", 4, {}), ("text", 4, {"optimizer": "muon"}), ("images", 2, {})],
    ids=str,
)
def test_nothing_that_is_needed_is_overwritten(kind, micro_batches, changed, tiny_corpus, tmp_path, graphs):
    """The same run to the bit, with gradients of several micro-batches in memory of their own."""
    make = partial(tiny_spec, tiny_corpus) if kind == "text" else image_spec
    options = {**SHORT, "micro_batch_size": 8 // micro_batches, "gradient_clipping": 0.5, **changed}
    expected = train(make(**options, **OFF), tmp_path / "off")
    assert (graphs.options, graphs.passes) == ([None], 0)
    assert_same_run(train(make(**options, **ON), tmp_path / "on"), expected)
    assert graphs.options == [None, CAPTURED]
    assert graphs.passes > 4 + SHORT["steps"] * micro_batches  # four to warm up, and those of the evaluations


def refusing(where: str, error: Exception, compile_for: Callable[..., Any]) -> Callable[..., Callable[..., Tensor]]:
    """A compiler whose passes raise `error` there, if they are to be captured."""

    def refuse(*_: Tensor) -> Tensor:
        raise error

    def compiled(function: Callable[..., Tensor], *, options: object = None, **how: Any) -> Callable[..., Tensor]:
        inner = compile_for(function, options=options, **how)

        def call(*inputs: Tensor) -> Tensor:
            output: Tensor = inner(*inputs)
            if options is not None and where == "backward" and output.requires_grad:
                output.register_hook(refuse)
            elif options is not None and where == ("forward" if torch.is_grad_enabled() else "evaluation"):
                refuse()
            return output

        return call

    return compiled


@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ("raised:\nskipping cudagraphs due to mutations\nFound", UserError, "^train.cuda_graphs: skipping cuda"),
        ("output of CUDAGraphs that has been overwritten", RuntimeError, "^output of CUDAGraphs"),
    ],
)
@pytest.mark.usefixtures("graphs")
def test_passes_that_cannot_be_captured_are_an_error(tiny_corpus, tmp_path, monkeypatch, said, error, match):
    monkeypatch.setattr(torch, "compile", refusing("backward", RuntimeError(said), lambda function, **_: function))
    with pytest.raises(error, match=match):
        train(tiny_spec(tiny_corpus, **SHORT, **ON), tmp_path)


@pytest.mark.parametrize(
    ("where", "error"),
    [("backward", RuntimeError("skipping cudagraphs due to mutated inputs")), ("evaluation", torch.OutOfMemoryError())],
)
def test_auto_goes_on_without_graphs_and_says_why_once(tiny_corpus, tmp_path, graphs, monkeypatch, where, error):
    """Whatever cannot be captured; the record has what was done, and a resumed run does the same."""
    expected = train(tiny_spec(tiny_corpus, **SHORT, **OFF), tmp_path / "off")
    monkeypatch.setattr(torch, "compile", refusing(where, error, graphs.compile))
    heard: list[Event] = []
    spec = tiny_spec(tiny_corpus, **SHORT, compile=True, save_every=2)
    with pytest.raises(Stopped):
        train(spec, tmp_path / "auto", listener=StopAt(4))
    found = train(spec, tmp_path / "auto", listener=heard.append)
    assert_same_run(found, expected)
    starts = json.loads(found.environment_file.read_text(encoding="utf-8"))
    assert [(start["captured"], start["differs"]) for start in starts] == [(False, [])] * 2
    (said,) = (event.text for event in heard if isinstance(event, Note))
    reason = str(error) or "there is not enough memory for them"
    assert said == f"train.cuda_graphs: {reason}; the run continues without CUDA graphs"


@pytest.mark.parametrize("given", [{"compile": True}, {}, {"compile": True, "sharding": "fsdp"}, OFF, ON], ids=str)
def test_where_passes_are_captured(given):
    for device, processes in (("cuda", 1), ("cuda", 2), ("cpu", 1)):
        found = tasks.is_captured(TrainSettings(steps=4, **given), World(torch.device(device), 0, processes))
        assert found is (given in ({"compile": True}, ON) and (device, processes) == ("cuda", 1))


def test_several_processes_are_refused(tiny_corpus, tmp_path):
    spec = tiny_spec(tiny_corpus, **ON)
    with pytest.raises(UserError, match=r"cuda_graphs: true needs one process per run, and there are 2") as refused:
        check_training(2, [spec], "cpu", None)
    assert "train.cuda_graphs=false" in str(refused.value.hint)
    with pytest.raises(UserError, match="needs one process per run"):  # as torchrun starts them
        training(spec, tmp_path, world=World(torch.device("cpu"), 0, 2))
