"""Training with hand-written kernels and with the reference: the same run, told in other roundings.

Tolerance: fp32 sums in other orders start some 1e-7 apart; over thirty updates losses drift to some 1e-6 (an epsilon of
1e-4 keeps Adam's division from making more of a tiny gradient's rounding). 1e-5 is asked.
"""

from __future__ import annotations

import json

import pytest
from tiny_runs import assert_resumes, tiny_spec, train

from comt_cli.kernels.cpu import build
from comt_cli.runs.directory import RunDirectory

needs_compiler = pytest.mark.usefixtures("compiled_kernels")
SHAPE = {"width": 24, "ffn_width": 37, "layers": 2, "heads": 2, "kv_heads": 1}
OPTIONS = {"steps": 30, "batch_size": 4, "log_every": 1, "learning_rate": 2e-3, "epsilon": 1e-4, "model": SHAPE}
METHODS = ["comt", {"name": "transponder", "residual": "post-norm"}]


@pytest.fixture(scope="module")
def compiled_kernels() -> None:
    """Compiled when a test needs them: at import, every process of the suite would wait for the compiler."""
    if (missing := build.available()) is not None:
        pytest.skip(f"the C++ kernels cannot be built: {missing}")


def losses(directory: RunDirectory) -> list[float]:
    return [line["loss"] for line in directory.metrics() if "loss" in line]


def fused_ops(directory: RunDirectory) -> set[str]:
    (start,) = json.loads(directory.environment_file.read_text(encoding="utf-8"))
    return {op for op, text in start["kernels"].items() if text.startswith("fused")}


@needs_compiler
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_cpu_kernels_train_as_the_reference(tiny_corpus, tmp_path, method):
    options = {**OPTIONS, "method": method}
    expected = train(tiny_spec(tiny_corpus, kernels="reference", **options), tmp_path / "reference")
    found = train(tiny_spec(tiny_corpus, kernels="fused", **options), tmp_path / "fused")
    assert fused_ops(expected) == set()
    assert fused_ops(found) == {"loss", "heads", "swiglu", "add_norm" if isinstance(method, str) else "modulate"}
    assert losses(expected)[-1] < losses(expected)[0] - 0.5, "nothing was learnt that could be lost"
    assert losses(found) == pytest.approx(losses(expected), rel=1e-5)
    assert losses(found) != losses(expected), "the kernels were not used"


@needs_compiler
def test_a_fused_run_resumes_to_the_bit(tiny_corpus, tmp_path):
    spec = tiny_spec(tiny_corpus, kernels="fused", **{**OPTIONS, "steps": 12, "method": "transponder", "save_every": 3})
    assert_resumes(spec, tmp_path, 4, 7)
