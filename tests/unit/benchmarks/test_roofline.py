"""The cost model against the numbers that were worked out apart from it, and against what must be so."""

from __future__ import annotations

import pytest

from comt_cli.benchmarks.roofline import DESIGNS, LABEL, Roofline, predicted_step_ratio, predictions
from comt_cli.benchmarks.shapes import GPU_SIZES, Goals, decode_goal, goal_device, goals_of
from comt_cli.tasks.settings.llama import LLAMA_SIZES

# 65,536 tokens, 16 columns of u a site: milliseconds of the plain step; step and forward ratios of Transponder's
# designs eager, compiled, fused, fused-whole-tiles, and of CoMT's eager and fused. First at full speed of the matrix
# products, then at 80 %.
PRINTED = {
    ("60m", 1.0): (30.38, "3.006/2.780 1.389/1.332 1.071/1.040 1.102/1.072", "1.641/1.500 1.046/1.026"),
    ("130m", 1.0): (73.66, "2.855/2.591 1.366/1.303 1.064/1.034 1.100/1.070", "1.592/1.446 1.043/1.023"),
    ("250m", 1.0): (150.06, "3.036/2.727 1.400/1.327 1.065/1.034 1.105/1.073", "1.646/1.483 1.042/1.022"),
    ("350m", 1.0): (214.57, "2.699/2.439 1.328/1.266 1.058/1.030 1.084/1.056", "1.543/1.404 1.039/1.021"),
    ("1b", 1.0): (729.30, "1.999/1.856 1.192/1.158 1.033/1.017 1.049/1.032", "1.319/1.240 1.023/1.012"),
    ("60m", 0.8): (35.56, "2.714/2.517 1.341/1.292 1.062/1.036 1.095/1.070", "1.547/1.426 1.039/1.022"),
    ("1b", 0.8): (887.76, "1.821/1.705 1.162/1.134 1.028/1.015 1.044/1.031", "1.262/1.198 1.019/1.010"),
}


def pairs(text: str) -> list[tuple[float, ...]]:
    return [tuple(float(number) for number in pair.split("/")) for pair in text.split()]


@pytest.mark.parametrize(("size", "efficiency"), PRINTED)
def test_the_numbers_that_are_known(size, efficiency):
    """To the last digit printed."""
    roofline = Roofline(LLAMA_SIZES[size], columns=16, efficiency=efficiency)
    milliseconds, transponder, comt = PRINTED[size, efficiency]
    assert 1e3 * roofline.plain().step == pytest.approx(milliseconds, abs=0.005)
    for design, expected in zip(DESIGNS, pairs(transponder), strict=True):
        assert roofline.transponder(design) == pytest.approx(expected, abs=6e-4), design
    for design, expected in zip(("eager", "fused"), pairs(comt), strict=True):
        assert roofline.comt(design) == pytest.approx(expected, abs=6e-4), design
    assert roofline.comt("compiled") is None


def test_a_plain_layer_by_hand():
    """60m's q, k and v: 2 * 65536 * 1536 * 512 / 790e12 s = 130.5 us, and 12 GB/s too few bytes to matter."""
    roofline = Roofline(LLAMA_SIZES["60m"])
    qkv, *_ = roofline.products()
    assert 1e6 * roofline.forward_of(qkv) == pytest.approx(130.5, abs=0.05)
    assert 1e6 * roofline.backward_of(qkv) == pytest.approx(261.0, abs=0.05)
    assert 1e6 * roofline.passes(512, 1) == pytest.approx(15.6, abs=0.05)
    # The bytes decide where there is little arithmetic: [65536, 1] @ [1, 512].
    assert roofline.product(65536, 512, 1) == pytest.approx(2 * (65536 + 512 + 65536 * 512) / 4.3e12)


def test_fewer_columns_cost_less_and_none_cost_only_passes():
    eight, sixteen, none = (
        Roofline(LLAMA_SIZES["60m"], columns=columns).transponder("fused") for columns in (8, 16, 0)
    )
    assert none < eight < sixteen


def test_every_row_says_that_it_is_no_measurement():
    rows = predictions()
    assert {row.kind for row in rows} == {LABEL} == {"predicted, not measured"}
    assert {row.size for row in rows} == set(GPU_SIZES)
    fused = next(row for row in rows if (row.size, row.variant) == ("60m", "transponder-fused"))
    assert (fused.goal_step_ratio, fused.goal_forward_ratio) == (1.08, 1.05)
    assert predicted_step_ratio("NVIDIA H200", "60m", "bf16-pure", "transponder-fused") == fused.predicted_step_ratio


@pytest.mark.parametrize(
    ("device", "size", "precision", "variant"),
    [
        ("NVIDIA H100", "60m", "bf16-pure", "transponder-fused"),
        ("NVIDIA H200", "bench", "bf16-pure", "transponder-fused"),
        ("NVIDIA H200", "60m", "fp32", "transponder-fused"),
        ("NVIDIA H200", "60m", "bf16-pure", "comt-compiled"),
        ("NVIDIA H200", "60m", "bf16-pure", "plain-fused"),
        ("NVIDIA H200", "60m", "bf16-pure", "transformers-compiled"),
    ],
)
def test_nothing_is_predicted_of_what_is_not_modelled(device, size, precision, variant):
    assert predicted_step_ratio(device, size, precision, variant) is None


CPU = "Intel(R) Xeon(R) Processor, 2 threads"
H200 = "NVIDIA H200"


@pytest.mark.parametrize(
    ("variant", "size", "device", "precision", "goals"),
    [
        ("transponder-fused", "1b", H200, "bf16-pure", Goals(step=1.035, forward=1.02, saved=1.15)),
        ("comt-fused", "350m", H200, "bf16-mixed", Goals(step=1.035, saved=1.15)),
        ("plain-fused", "60m", H200, "bf16-pure", Goals(mfu=0.45)),
        ("transponder-fused", "bench", CPU, "fp32", Goals(step=1.15, forward=1.1)),
        ("comt-fused", "bench", "A processor, 1 thread", "bf16-pure", Goals(step=1.08)),
        ("plain-fused", "bench", CPU, "fp32", Goals()),
        # not judged: what is not fused, and what the goals are not about
        ("comt-compiled", "350m", H200, "bf16-pure", Goals()),
        ("plain-compiled", "60m", H200, "bf16-pure", Goals()),
        ("transponder-eager", "60m", H200, "bf16-pure", Goals()),
        ("transponder-compiled", "bench", CPU, "fp32", Goals()),
        ("transponder-fused", "60m", H200, "fp32", Goals()),
        ("transponder-fused", "60m", "NVIDIA H200 MIG 1g.18gb", "bf16-pure", Goals()),
        ("transponder-fused", "60m", "NVIDIA A100-SXM4-80GB", "bf16-pure", Goals()),
        ("transponder-fused", "bench", H200, "bf16-pure", Goals()),
        ("transponder-fused", "bench", goal_device("mps", CPU), "fp32", Goals()),
    ],
)
def test_goals_are_asked_of_fused_variants_on_their_device(variant, size, device, precision, goals):
    assert goals_of(variant, size, device, precision) == goals


def test_the_goal_of_decoding():
    assert decode_goal("comt-fused", H200, "bf16") == 1.05
    for other in (("comt", H200, "bf16"), ("plain-fused", H200, "bf16"), ("comt-fused", H200, "fp32"),
                  ("comt-fused", CPU, "bf16"), ("comt-fused", "NVIDIA A100", "bf16")):  # fmt: skip
        assert decode_goal(*other) is None, other
