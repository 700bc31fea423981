"""What a process is set to before it computes on a GPU. The settings are PyTorch's own and can be made without one."""

from __future__ import annotations

import json
import os

import pytest
import torch
from tiny_runs import image_spec, masked_spec, pair_spec, tiny_spec, train, training

from comt_cli.kernels import attend
from comt_cli.kernels.choice import Choice
from comt_cli.models import kernels
from comt_cli.runs.directory import BATCHED, PYTORCH
from comt_cli.tasks.settings.language import TrainSettings
from comt_cli.training.devices import pick_device, prepare_process
from comt_cli.training.events import Event, Note
from comt_cli.training.loop import needs_warm_up
from comt_cli.training.parallel import World


@pytest.fixture
def cuda(monkeypatch):
    """A CUDA device as far as it is asked for one here; PyTorch's settings are put back afterwards."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(os, "environ", {})
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.backends.cudnn.allow_tf32 = True
    yield torch.device("cuda", 0)
    torch.backends.cudnn.allow_tf32 = True
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fills


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize("name", [None, "cuda", "cuda:0"])
def test_no_convolution_is_rounded_to_tf32(name):
    """Also where nothing is trained: `pick_device` is all that verbs which look into a trained network ask for."""
    assert pick_device(name).type == "cuda"
    assert torch.backends.cudnn.conv.fp32_precision != "tf32"
    assert torch.backends.cudnn.fp32_precision != "tf32"  # what the compiler reads
    assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"


def test_only_a_deterministic_run_forbids_kernels(cuda):
    """Whatever an earlier run of the process asked for."""
    for deterministic in (True, False, True):
        prepare_process(cuda, deterministic=deterministic)
        assert torch.are_deterministic_algorithms_enabled() is deterministic


@pytest.mark.parametrize("deterministic", [True, False])
def test_cublas_is_bound_before_its_first_product(cuda, deterministic):
    """Also in a run that need not repeat: a deterministic one may follow in this process."""
    prepare_process(cuda, deterministic=deterministic)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_attention_is_recorded_of_what_attends_in_short_sequences(tiny_corpus, tmp_path, monkeypatch):
    """Runs of others are comparable from whichever processor they come."""
    monkeypatch.setattr(attend, "_class", lambda: "Intel AMX")
    long = {"sequence_length": attend.MOST_TOKENS + 1}

    def recorded(spec):
        (start,) = json.loads(train(spec, tmp_path).environment_file.read_text(encoding="utf-8"))
        return start["attention"]

    options = {"steps": 1, "warmup_steps": 0, "precision": "bf16-mixed"}
    assert recorded(tiny_spec(tiny_corpus, **options)) == BATCHED
    assert recorded(tiny_spec(tiny_corpus, **{**options, "precision": "fp32"})) == PYTORCH
    assert recorded(tiny_spec(tiny_corpus, data=long, **options)) == PYTORCH
    assert recorded(image_spec(**options)) == PYTORCH
    assert training(masked_spec(tiny_corpus, precision="bf16-pure"), tmp_path).task.attention == BATCHED
    assert training(pair_spec(precision="bf16-pure"), tmp_path).task.attention == BATCHED


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_compiles_in_the_first_pass_is_warmed_up(device, fused, compiled):
    """Triton's kernels do on a GPU; those of a CPU are there before."""
    settings = TrainSettings(steps=4, compile=compiled)
    kernels = {"heads": Choice(False, "for the test"), "swiglu": Choice(fused, "for the test")}
    found = needs_warm_up(settings, World(torch.device(device)), kernels)
    assert found is (compiled or (fused and device == "cuda"))


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        (
            {"swiglu": Choice(True, "...", 1.5, "NVIDIA H200"), "heads": Choice(False, "...", 0.9, "NVIDIA H200")},
            "swiglu fused (1.50), heads reference (0.90); fused over compiled reference, measured on NVIDIA H200; "
            "comt bench kernels --tune measures anew",
        ),
        (
            {"swiglu": Choice(False, "not measured: comt bench kernels --tune")},
            "reference (not measured: comt bench kernels --tune)",
        ),
    ],
)
def test_a_run_on_a_gpu_says_which_kernels_it_uses_by_what(tiny_corpus, tmp_path, monkeypatch, choices, said):
    heard: list[Event] = []
    run = training(tiny_spec(tiny_corpus, compile=True, kernels="auto"), tmp_path, listener=heard.append)
    monkeypatch.setattr(run.task, "use_kernels", lambda: choices)
    assert run._use_kernels() is choices
    assert not heard
    run.world = World(torch.device("cuda", 0))
    run._use_kernels()
    assert [event.text for event in heard if isinstance(event, Note)] == [f"train.kernels: auto: {said}"]


def test_kernels_are_chosen_for_as_many_tokens_as_go_through_at_once(tiny_corpus, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(kernels, "choose", lambda *_, **how: asked.append(how["tokens"]) or Choice(False, "a test"))
    run = training(tiny_spec(tiny_corpus, batch_size=8, micro_batch_size=2), tmp_path)
    run.task.build()
    run.task.use_kernels()
    assert {*asked} == {2 * run.spec.settings.data.sequence_length}


def test_a_run_on_a_cpu_is_the_same_either_way_and_says_so(tiny_corpus, tmp_path):
    heard: list[Event] = []
    exact = train(tiny_spec(tiny_corpus, steps=4), tmp_path)
    loose = train(tiny_spec(tiny_corpus, steps=4, deterministic=False), tmp_path, listener=heard.append)
    assert loose.path != exact.path
    assert loose.metrics_file.read_bytes() == exact.metrics_file.read_bytes()
    assert [event.text for event in heard if isinstance(event, Note)] == [
        "train.deterministic: false changes nothing here: it is for CUDA devices"
    ]
