"""Training image classifiers on a GPU: finite in every precision, resumed to the bit, compiled, both stems."""

from __future__ import annotations

import math
import os

import pytest

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first product on the device

import torch
from tiny_runs import StopAt, Stopped, assert_same_run, image_spec, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible"),
]


@pytest.fixture(autouse=True)
def deterministic_only_here():
    """A run switches to deterministic kernels for the process; the next test starts without."""
    yield
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()


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
def test_it_learns_and_resumes_to_the_bit(tmp_path, method, options):
    spec = image_spec(method=method, steps=20, log_every=1, save_every=6, gradient_norms_every=5, **options)
    expected = train(spec, tmp_path / "undisturbed", device="cuda")
    result = expected.result()
    assert result["state"] == "done"
    assert math.isfinite(result["loss"])
    with pytest.raises(Stopped):
        train(spec, tmp_path / "runs", device="cuda", listener=StopAt(10))
    assert_same_run(train(spec, tmp_path / "runs", device="cuda"), expected)


def test_the_gpu_agrees_with_the_cpu(tmp_path):
    """The same initial weights, images and crops. fp32 sums in another order; TF32 is off."""
    spec = image_spec(steps=4, log_every=1, learning_rate=1e-2)
    cpu, gpu = (train(spec, tmp_path / device, device=device).metrics() for device in ("cpu", "cuda"))
    assert gpu[0]["loss"] == pytest.approx(cpu[0]["loss"], rel=1e-4)
    assert [line["loss"] for line in gpu[:-1]] == pytest.approx([line["loss"] for line in cpu[:-1]], rel=1e-2)
