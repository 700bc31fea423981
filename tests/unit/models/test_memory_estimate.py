"""The estimate of memory: what is kept for the backward pass, against what a real forward pass keeps."""

from __future__ import annotations

import pytest
import torch

from comt_cli.data.text.settings import DataSettings
from comt_cli.layers.initialise import initialise
from comt_cli.models.accounting import cost_of, training_bytes
from comt_cli.models.build import model_of
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.language import Settings, TrainSettings
from comt_cli.tasks.settings.llama import ModelSettings

T = 128


def spec(method: str, checkpointing: bool = False, **model) -> RunSpec:
    settings = Settings(
        model=ModelSettings(**{"size": "tiny", "layers": 3, **model}),
        data=DataSettings(tokenizer="bytes", sequence_length=T),
        train=TrainSettings(steps=1, activation_checkpointing=checkpointing),
    )
    names = {"paper": "comt", "table": "t", "command": "train-lm", "scale": "smoke", "row": "a", "column": "b"}
    return RunSpec(**names, seed=1, method={"name": method}, settings=settings, data_fingerprint="none")


def really_kept(spec: RunSpec, rows: int) -> int:
    """Numbers that a forward pass up to the head keeps on the CPU, parameters apart."""
    model = model_of(spec).to_empty(device="cpu")
    initialise(model, 0)
    model.activation_checkpointing = spec.settings.train.activation_checkpointing
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.hidden(torch.zeros(rows, T, dtype=torch.long))
        storages = [tensor.untyped_storage() for address, tensor in kept.items() if address not in own]
        assert hidden.requires_grad
        return sum(storage.nbytes() // 4 for storage in storages)


@pytest.mark.parametrize("method", ["pre-ln", "comt", "transponder"])
def test_it_is_what_a_forward_pass_keeps(method):
    cost = cost_of(spec(method))
    head_per_row, head = T * 128, 258 * 128  # the gradients that the head's loss keeps
    two, four = (really_kept(spec(method), rows) for rows in (2, 4))
    # Fused attention keeps a few numbers a token that the meta device's does not, and unfused copies of the keys.
    assert cost.kept_per_row - head_per_row == pytest.approx((four - two) / 2, rel=0.15)
    assert cost.kept_always - head == pytest.approx(2 * two - four, rel=0.15, abs=5e4)


def test_joined_weights_of_gates_are_not_kept():
    plain, gated = cost_of(spec("pre-ln")), cost_of(spec("comt"))
    blocks = 3 * (4 * 128**2 + 3 * 128 * 344)
    assert gated.kept_always - plain.kept_always < 0.01 * blocks
    assert plain.kept_per_row < gated.kept_per_row < 1.8 * plain.kept_per_row  # z of seven projections, before gating


def test_gates_need_modestly_more_at_130m():
    plain, gated = (training_bytes(spec(method, size="130m", layers=None), 128) for method in ("pre-ln", "comt"))
    assert 1 < gated / plain < 1.7


def test_checkpointing_keeps_one_block_and_the_inputs_of_the_others():
    plain, saving = cost_of(spec("comt")), cost_of(spec("comt", checkpointing=True))
    assert saving.flops_per_row == plain.flops_per_row  # of the model, whatever is computed twice
    assert saving.kept_per_row < 0.5 * plain.kept_per_row
    assert saving.kept_always <= plain.kept_always
    assert saving.kept_per_row > plain.kept_per_row / 3


@pytest.mark.parametrize(("method", "more"), [("denseformer", 1), ("hyper-connections", 3)])
def test_checkpointing_keeps_all_that_a_state_holds(method, more):
    """Of the second and third block so many tensors more than the stream: a layer's output, or the other streams."""
    (plain, saving), (pre_ln, pre_ln_saving) = (
        [cost_of(spec(name, checkpointing)).kept_per_row for checkpointing in (False, True)]
        for name in (method, "pre-ln")
    )
    inputs = saving - pre_ln_saving - (plain - pre_ln) / 3  # without the block that is computed again
    assert inputs == pytest.approx(2 * more * T * 128, abs=2)
