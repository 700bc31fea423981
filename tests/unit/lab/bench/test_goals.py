"""What is asked of whom: goals by variant, size, device and precision."""

from __future__ import annotations

import pytest

from comt_cli.lab.bench.goals import decode_goal
from comt_cli.lab.bench.subjects import CONNECTIONS, SUBJECTS, subject_of

CPU = "Intel(R) Xeon(R) Processor, 2 threads"
H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


@pytest.mark.parametrize(
    ("variant", "size", "device", "precision", "goals"),
    [
        ("transponder-fused", "1b", H200, "bf16-pure", {"step": 1.035, "saved": 1.15}),
        ("transponder-fused-graphs", "1b", H100, "bf16-pure", {"step": 1.035, "saved": 1.15}),
        ("transponder-compiled", "350m", H200, "bf16-pure", {"compiled": 1.2}),
        ("transformers-compiled", "60m", H200, "bf16-pure", {"compiled_peer": 1.1494}),
        ("transformers-compiled", "bench", CPU, "fp32", {"compiled_peer": 1.0526}),
        ("transformers-compiled", "bench", CPU, "bf16-pure", {"compiled_peer": 1.6129}),
        ("comt-fused", "350m", H200, "bf16-mixed", {"step": 1.035, "saved": 1.15}),
        ("plain-fused", "60m", H200, "bf16-pure", {"compiled": 0.95}),
        ("plain-fused", "130m", H200, "bf16-pure", {}),
        ("transponder-fused", "bench", CPU, "fp32", {"step": 1.12, "forward": 1.1, "saved": 1.2}),
        ("transponder-fused", "bench", CPU, "bf16-pure", {"step": 1.2, "forward": 1.1, "saved": 1.2}),
        ("comt-fused", "bench", CPU, "fp32", {"step": 1.04}),
        ("comt-fused", "bench", "A processor, 1 thread", "bf16-pure", {"step": 1.08}),
        ("window-fused", "resnet18", H200, "bf16-mixed", {"step": 1.06}),
        ("pixel-fused", "resnet50-224", H200, "bf16-pure", {"step": 1.05}),
        ("plain-fused", "resnet18", H200, "bf16-mixed", {"speed": 60_000}),
        ("window-fused", "resnet18-b32", CPU, "fp32", {"step": 1.10}),
        ("pixel-fused-eager", "resnet18-b32", CPU, "bf16-mixed", {"step": 1.10}),
        ("window-fused", "resnet18-b32", CPU, "bf16-pure", {"step": 1.10}),
        # not judged: what is not fused or not the quickest, and what the goals are not about
        ("plain-fused", "bench", CPU, "fp32", {}),
        ("comt-fused", "bench", CPU, "bf16-mixed", {}),
        ("comt-compiled", "350m", H200, "bf16-pure", {}),
        ("plain-compiled", "60m", H200, "bf16-pure", {}),
        ("transponder-eager", "60m", H200, "bf16-pure", {}),
        ("transponder-compiled", "bench", CPU, "fp32", {}),
        ("transponder-fused", "60m", H200, "fp32", {}),
        ("transponder-fused", "60m", "NVIDIA H200 MIG 1g.18gb", "bf16-pure", {}),
        ("transponder-fused", "60m", "NVIDIA H100 NVL", "bf16-pure", {}),
        ("transponder-fused", "60m", "NVIDIA A100-SXM4-80GB", "bf16-pure", {}),
        ("transponder-fused", "bench", H200, "bf16-pure", {}),
        ("plain-compiled", "resnet18", H200, "bf16-mixed", {}),
        ("plain-fused", "resnet18-b64", H200, "bf16-mixed", {}),
        ("plain-fused", "resnet18-b32", CPU, "fp32", {}),
        ("window-compiled", "resnet18", H200, "bf16-mixed", {}),
        ("window-fused", "resnet18", H200, "fp32", {}),
        ("window-fused", "resnet18", "NVIDIA A100-SXM4-80GB", "bf16-mixed", {}),
        ("window-fused", "resnet18-b32", H200, "bf16-mixed", {}),
    ],
)
def test_goals_are_asked_of_fused_variants_on_their_device(variant, size, device, precision, goals):
    subject = subject_of(size)
    row = {"variant": variant, "size": size, "device": device, "precision": precision, "best_plain": "plain-fused"}
    row["shape"] = str(subject.shapes[size])
    found = subject.goals(row)
    assert {name: goal for name, goal in found.items() if goal is not None} == {
        subject.goal_columns[kind]: goal for kind, goal in goals.items()
    }
    assert list(found) == list(subject.goal_columns.values())
    assert {*subject.goals(row, "mps").values()} == {None}, "it has its processor's name"
    if "speed" in goals:
        half = str(subject.shapes[size].halved())
        assert subject.goals({**row, "shape": half})["goal_images_per_second"] is None, "it is of the whole batch"


@pytest.mark.parametrize(
    ("variant", "device", "goal"),
    [
        ("highway-compiled", CPU, 1.26),
        ("highway-eager", CPU, None),
        ("plain-compiled", CPU, None),
        ("highway-compiled", H200, None),
    ],
)
def test_a_step_may_take_five_per_cent_more_than_its_arithmetic(variant, device, goal):
    shape = CONNECTIONS.shapes["residual-bench"]
    row = {"variant": variant, "size": shape.size, "shape": str(shape), "device": device, "precision": "fp32"}
    row |= {"best_plain": "plain-compiled", "arithmetic_ratio_to_plain": "1.2"}
    assert CONNECTIONS.goals(row) == {"goal_step_ratio": goal}
    assert CONNECTIONS.goals({**row, "arithmetic_ratio_to_plain": ""}) == {"goal_step_ratio": None}


def test_the_columns_of_goals():
    assert [list(subject.goal_columns.values()) for subject in SUBJECTS] == [
        [
            "goal_step_ratio",
            "goal_forward_ratio",
            "goal_saved_ratio",
            "goal_step_ratio_to_plain_compiled",
            "goal_least_step_ratio",
        ],
        ["goal_step_ratio", "goal_images_per_second"],
        ["goal_step_ratio_to_torch"],
        [],
        ["goal_step_ratio_to_bertformaskedlm"],
        ["goal_step_ratio"],
    ]


def test_the_goal_of_decoding():
    assert [decode_goal("comt-fused", device, "bf16", 16) for device in (H100, H200)] == [1.05, 1.05]
    assert [decode_goal("comt-fused", CPU, "fp32", batch) for batch in (1, 16, 64)] == [1.10, None, 1.05]
    for other in (("comt", H200, "bf16"), ("plain-fused", H200, "bf16"), ("comt-fused", H200, "fp32"),
                  ("comt", CPU, "bf16"), ("comt-fused", "NVIDIA A100", "bf16")):  # fmt: skip
        assert decode_goal(*other, 1) is None, other
