"""Training on a GPU: finite in every precision, resumed to the bit, deterministic, compiled, measured."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter

import pytest
import torch
from pairwise import pairwise
from tiny_runs import assert_resumes, assert_same_run, image_spec, stopped_at, tiny_spec, train

from comt_cli.training.devices import peak_flops
from comt_cli.training.events import Note

WIDE = {"width": 256, "ffn_width": 512, "layers": 4, "heads": 4}
AUTO = {"compile": True, "precision": "bf16-mixed", "micro_batch_size": 2, "steps": 12, "log_every": 1}


@pytest.fixture(autouse=True)
def deterministic_only_here():
    """A run switches to deterministic kernels for the process; the next test starts without."""
    yield
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()


@pairwise(
    method=["pre-ln", "comt", "transponder"],
    precision=["fp32", "bf16-mixed", "bf16-pure"],
    kernels=["reference", "fused"],
)
def test_it_learns_in_every_precision(tiny_corpus, tmp_path, method, precision, kernels):
    spec = tiny_spec(tiny_corpus, method=method, precision=precision, kernels=kernels)
    directory = train(spec, tmp_path, device="cuda")
    assert torch.are_deterministic_algorithms_enabled()
    result = directory.result()
    assert result["state"] == "done"
    losses = [line["loss"] for line in directory.metrics() if "loss" in line]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0] - 1
    assert 0 < result["peak_memory_bytes"] < 2**30


def test_the_gpu_agrees_with_the_cpu(tiny_corpus, tmp_path):
    """The same initial weights and samples. fp32 sums in another order: 1e-6 in the first loss, drift afterwards."""
    spec = tiny_spec(tiny_corpus, steps=6, log_every=1, epsilon=1e-4, learning_rate=1e-3)
    cpu, gpu = (train(spec, tmp_path / device, device=device).metrics() for device in ("cpu", "cuda"))
    assert gpu[0]["loss"] == pytest.approx(cpu[0]["loss"], rel=1e-5)
    assert [line["loss"] for line in gpu[:-1]] == pytest.approx([line["loss"] for line in cpu[:-1]], rel=1e-3)


def test_the_triton_kernels_train_as_the_reference(tiny_corpus, tmp_path):
    """Thirty updates in fp32; an epsilon of 1e-4 keeps roundings of tiny gradients small: 1e-4 after them."""
    losses = []
    for kernels in ("reference", "fused"):
        options = {"steps": 30, "log_every": 1, "learning_rate": 2e-3, "epsilon": 1e-4}
        directory = train(
            tiny_spec(tiny_corpus, method="transponder", kernels=kernels, **options), tmp_path / kernels, device="cuda"
        )
        (start,) = json.loads(directory.environment_file.read_text(encoding="utf-8"))
        used = {op for op, text in start["kernels"].items() if text.startswith("fused")} - {"loss"}
        assert used == (set() if kernels == "reference" else {"heads", "swiglu", "add_norm"})
        losses.append([line["loss"] for line in directory.metrics() if "loss" in line])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("comt", {"precision": "bf16-pure", "micro_batch_size": 2}),
        ("comt", {"precision": "bf16-pure", "micro_batch_size": 2, "optimizer": "muon", "weight_decay": 0.1}),
        ("transponder", {"precision": "bf16-mixed", "kernels": "fused", "model": WIDE}),
        ("transponder", {"precision": "bf16-mixed", "compile": True, "cuda_graphs": True, "micro_batch_size": 2}),
    ],
    ids=str,
)
def test_resume_is_exact(tiny_corpus, tmp_path, method, options):
    spec = tiny_spec(tiny_corpus, method=method, steps=12, log_every=1, **options)
    assert_resumes(spec, tmp_path, 3, 6, 5, device="cuda")


def test_a_run_may_leave_determinism_off(tiny_corpus, tmp_path):
    """Its losses are the exact run's to rounding: six steps, as in the comparison of a GPU with a CPU."""
    options = {"steps": 6, "log_every": 1, "epsilon": 1e-4, "learning_rate": 1e-3}
    exact = train(tiny_spec(tiny_corpus, **options), tmp_path, device="cuda").metrics()
    loose = train(tiny_spec(tiny_corpus, deterministic=False, **options), tmp_path, device="cuda").metrics()
    assert not torch.are_deterministic_algorithms_enabled()
    assert [line["loss"] for line in loose[:-1]] == pytest.approx([line["loss"] for line in exact[:-1]], rel=1e-3)


@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize(("method", "kernels"), [("comt", "reference"), ("transponder", "fused")])
def test_compiled(tiny_corpus, tmp_path, method, kernels):
    options = {"kernels": kernels, "method": method, "steps": 6, "log_every": 1, "precision": "bf16-mixed"}
    eager, compiled = (
        train(tiny_spec(tiny_corpus, compile=on, **options), tmp_path, device="cuda").metrics() for on in (False, True)
    )
    for first, second in zip(eager, compiled, strict=True):
        if "loss" in first:  # bf16: 8 bits
            assert second["loss"] == pytest.approx(first["loss"], rel=2e-2)


@pytest.fixture
def counted(monkeypatch):
    """Counts of calls of compiled code with CUDA graphs ("calls"), and of graphs that were replayed ("replays")."""
    count = Counter()
    begin, replay = torch.compiler.cudagraph_mark_step_begin, torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: (count.update(["calls"]), begin())[1])
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (count.update(["replays"]), replay(graph))[1])
    return count


@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize(
    ("method", "precision", "options"),
    [
        ("comt", "fp32", {"kernels": "reference"}),
        ("transponder", "bf16-mixed", {"kernels": "fused", "micro_batch_size": 4}),
        ("pre-ln", "bf16-pure", {"kernels": "fused", "activation_checkpointing": True, "gradient_clipping": 0.5}),
        ("transponder", "bf16-mixed", {"kernels": "fused", "micro_batch_size": 4, "optimizer": "muon"}),
    ],
    ids=str,
)
def test_cuda_graphs_change_no_number(tiny_corpus, tmp_path, counted, method, precision, options):
    """The same kernels on the same numbers: to rounding, should a library choose another one while it is captured."""
    options = {**options, "method": method, "precision": precision, "compile": True, "steps": 12, "log_every": 1}
    off, on = (
        train(tiny_spec(tiny_corpus, cuda_graphs=on, evaluate_every=3, **options), tmp_path / str(on), device="cuda")
        for on in (False, True)
    )
    # Every pass is one graph, which is replayed when it was just recorded, too; but before that each of the three runs
    # once as it is: training's forward and backward pass, and that of evaluations.
    backward = 2 + 12 * 8 // options.get("micro_batch_size", 8)  # two to warm up
    assert counted["calls"] > backward, "nothing was evaluated in graphs"
    assert counted["replays"] == counted["calls"] + backward - 3
    keys = ("loss", "validation_loss")
    losses = [[line[key] for line in each.metrics() for key in keys if key in line] for each in (off, on)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5 if precision == "fp32" else 2e-3)


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_auto_captures(tiny_corpus, tmp_path, counted):
    train(tiny_spec(tiny_corpus, **AUTO), tmp_path, device="cuda", listener=(heard := []).append)
    assert counted["replays"] > 0
    assert not [event for event in heard if isinstance(event, Note) and "cuda_graphs" in event.text]


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_auto_goes_on_where_a_capture_fails(tiny_corpus, tmp_path, counted, monkeypatch):
    """To the bit as a run without graphs, which it is to the end, resumed or not; the failure is said once a start."""
    expected = train(tiny_spec(tiny_corpus, **AUTO, cuda_graphs=False), tmp_path / "off", device="cuda")
    end = torch.cuda.CUDAGraph.capture_end

    def fail(graph: torch.cuda.CUDAGraph) -> None:
        try:
            torch.cuda.synchronize()  # refused while a stream is captured, and what was captured is lost
        finally:
            end(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_end", fail)
    spec = tiny_spec(tiny_corpus, **AUTO)
    stopped_at([6], spec, tmp_path / "auto", device="cuda")
    found = train(spec, tmp_path / "auto", device="cuda", listener=(heard := []).append)
    assert_same_run(found, expected)
    assert counted["replays"] == 0
    assert len([event for event in heard if isinstance(event, Note) and "without CUDA graphs" in event.text]) == 1
    starts = json.loads(found.environment_file.read_text(encoding="utf-8"))
    assert [(start["captured"], start["differs"]) for start in starts] == [(False, [])] * 2


def test_memory_is_of_each_run_and_mfu_of_known_devices(tiny_corpus, tmp_path):
    large, small = (
        train(tiny_spec(tiny_corpus, model=shape, precision="bf16-mixed"), tmp_path, device="cuda").result()
        for shape in ({"width": 512, "ffn_width": 1024, "layers": 4}, {})
    )
    assert small["peak_memory_bytes"] < large["peak_memory_bytes"] / 2, "the peak is that of the run before"
    if peak_flops(torch.device("cuda", 0), "bf16-mixed") is None:
        assert large["mfu"] is None
    else:
        assert 0 < large["mfu"] < 1


# ---- image classifiers


COMPILED = {"precision": "bf16-mixed", "compile": True, "kernels": "auto"}


@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize(
    ("method", "options"),
    [  # few are compiled, which takes longest
        ("sas-resnet", {}),
        ("comt-pixel", {"precision": "bf16-pure", "model": {"stem": "7x7"}}),
        ("comt-sliding-window", {"model": {"size": "preact-resnet110"}, "micro_batch_size": 4}),
        ("sas-resnet", {**COMPILED, "augmentation": "crop-flip"}),
        ("comt-pixel", {**COMPILED, "augmentation": "crop-flip"}),
        ("comt-sliding-window", {**COMPILED, "cuda_graphs": True}),
        ("addition", {**COMPILED, "cuda_graphs": True}),
    ],
    ids=str,
)
def test_images_are_learnt_and_resume_to_the_bit(tmp_path, method, options):
    spec = image_spec(method=method, steps=20, log_every=1, save_every=6, gradient_norms_every=5, **options)
    result = assert_resumes(spec, tmp_path, 10, device="cuda").result()
    assert result["state"] == "done"
    assert math.isfinite(result["loss"])


def test_workers_that_compile_leave_no_semaphores(tmp_path):
    """By hand: comt train-lm --recipe table3 --rows pre-ln --seeds 1-2 --jobs 2 --set train.compile=true."""
    settings = ("train.steps=4", "train.compile=true")
    words = ["train-lm", "--recipe", "table3", "--rows", "pre-ln", "--seeds", "1-2", "--jobs", "2", "--device", "cuda"]
    words += [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "comt_cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "2 runs: 2 done" in done.stderr
    assert "leaked semaphore" not in done.stderr
