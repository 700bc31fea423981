"""Comparison of comt's language models with those of transformers: one computation, two implementations.

Both get the same weights and the same embedded tokens. Compared are the streams after the final norm, and the gradients
of the input and of every weight. Where a model of transformers has other attention or other feed-forward networks than
comt's LLaMA, it gets copies of comt's (`Borrowed`): its own are the residual connections, the norms and the read-out.

Precision and tolerance: transformers casts norms, and the weights of streams, to fp32 whatever the type of the model.
There, sums in another order differ by 1e-7, and a gradient whose terms cancel by 1e-5: too near to a small mistake. So
both compute in float64, with these casts made casts to float64 (`in_float64`). What remains is below 1e-12 of the
largest number of a tensor; `TOLERANCE` is 1e-9.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import torch
from initialised import initialised
from torch import Tensor, nn

from comt_cli.layers.positions import rotation_table
from comt_cli.methods import method_from
from comt_cli.models.llama import Llama
from comt_cli.tasks.settings.language import ModelSettings

TOLERANCE = 1e-9
EPSILON = torch.finfo(torch.float64).eps
"""Of every norm of both models. Where comt's has none of its own it is PyTorch's, this one."""
D, F, LAYERS, HEADS, KV_HEADS, VOCABULARY = 24, 40, 2, 4, 2, 32
SETTINGS = ModelSettings(
    size="tiny", width=D, ffn_width=F, layers=LAYERS, heads=HEADS, kv_heads=KV_HEADS, tied_embeddings=True,
    norm_eps=EPSILON,
)  # fmt: skip
CONFIG = {
    "hidden_size": D, "intermediate_size": F, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY, "rms_norm_eps": EPSILON, "attn_implementation": "eager",
}  # fmt: skip
TOKENS = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0)).view(4, 8)
"""Every token once: the gradient of the embedding is that of the input."""

BORROWED = {
    f"{part}.{matrix}.weight": f"{sublayer}.part.{matrix}.weight"
    for part, sublayer, matrices in (("attention", "self_attn", ("qkv", "output")), ("mlp", "mlp", ("gate_up", "down")))
    for matrix in matrices
}
"""Names of the weights of `Borrowed`, for `renamed`."""

State = dict[str, Tensor]
Layout = Callable[[State], State]
"""Takes comt's tensors out of a state, and returns them under the names and in the layout of transformers."""


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Within it, code that asks for fp32 by name gets float64."""
    with contextlib.ExitStack() as stack:
        for name in ("float", "float32"):
            stack.enter_context(mock.patch.object(torch, name, torch.float64))
        stack.enter_context(mock.patch.object(torch.Tensor, "float", torch.Tensor.double))
        yield


def modelling(model: str, kind: str) -> ModuleType:
    """The code of a model of transformers. Skips the test if the installed version does not have its class `kind`."""
    if importlib.util.find_spec(f"transformers.models.{model}") is None:
        pytest.skip(f"this version of transformers has no {model}")
    found = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    if not hasattr(found, kind):
        pytest.skip(f"this version of transformers has no {kind}")
    return found


def ours(**options: Any) -> Llama:
    """comt's model of a method, with weights that are not special: all differ, and mixing weights are far from even."""
    model = initialised(SETTINGS, method_from(options).wiring(), 1, vocabulary=VOCABULARY)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            if parameter.ndim == 2:
                parameter.copy_(noise / parameter.shape[1] ** 0.5)
            else:
                parameter.add_(noise, alpha=2 if "coefficients" in name else 0.3)
        model.embedding.weight.mul_(3)
    return model.double()


class Borrowed(nn.Module):
    """Attention or feed-forward network of one of comt's blocks, called as transformers calls its own. Attention
    returns a tuple of `outputs`."""

    def __init__(self, part: nn.Module, outputs: int = 1) -> None:
        super().__init__()
        self.part, self.outputs = copy.deepcopy(part), outputs

    def forward(self, hidden_states: Tensor, **_: Any) -> Any:
        part, inputs = self.part, {}
        if self.outputs > 1:
            inputs["rotation"] = rotation_table(hidden_states.shape[1], D // HEADS, SETTINGS.rope_theta, hidden_states)
        (y_BTD,) = getattr(part, part.last)(part.inner(hidden_states, **inputs))
        return y_BTD if self.outputs == 1 else (y_BTD, *[None] * (self.outputs - 1))


def lent(model: Llama, theirs: nn.Module, outputs: int = 2) -> nn.Module:
    """The model of transformers with comt's attention, which returns so many `outputs`, and feed-forward networks."""
    for block, layer in zip(model.blocks, theirs.layers, strict=True):
        layer.self_attn, layer.mlp = Borrowed(block.attention, outputs), Borrowed(block.mlp)
    return theirs.double()


def renamed(state: State, names: Mapping[str, str]) -> State:
    """The tensors of every block, by comt's names in it, under the names in a layer of transformers."""
    return {
        f"layers.{layer}.{new}": state.pop(f"blocks.{layer}.{old}")
        for layer in range(LAYERS)
        for old, new in names.items()
    }


@dataclass
class Pair:
    """Two models of one computation. `layout` relates their weights, and so their gradients; weights of transformers
    are then greater by `offsets`."""

    ours: Llama
    theirs: nn.Module
    layout: Layout
    offsets: State = field(default_factory=dict)

    def check(self) -> None:
        """Copy the weights and compare."""
        self.copy_weights()
        self.compare()

    def copy_weights(self) -> None:
        """Copy comt's weights. Raises `AssertionError` if a weight of either model is left out."""
        state = {name: parameter.detach() for name, parameter in self.ours.named_parameters()}
        del state["embedding.weight"]
        found = self.layout(state)
        assert not state, f"not copied: {', '.join(state)}"
        parameters = dict(self.theirs.named_parameters())
        parameters.pop("embed_tokens.weight", None)  # both get embedded tokens
        assert found.keys() == parameters.keys()
        with torch.no_grad():
            for name, tensor in found.items():
                assert parameters[name].shape == tensor.shape, name
                parameters[name].copy_(tensor + self.offsets.get(name, 0))

    def compare(self) -> None:
        """Raises `AssertionError` if the outputs or any gradients differ by more than `TOLERANCE`."""
        for model in (self.ours, self.theirs):
            model.zero_grad()
        x_BTD = self.ours.embedding.weight[TOKENS].detach().requires_grad_()
        with in_float64():
            outputs = self.ours.hidden(TOKENS), self.theirs(inputs_embeds=x_BTD, use_cache=False).last_hidden_state
            weights = torch.randn(x_BTD.shape, generator=torch.Generator().manual_seed(3))
            for output in outputs:
                (output * weights).sum().backward()
        gradients = {name: parameter.grad for name, parameter in self.ours.named_parameters()}
        near("the output", *outputs)
        near("the input's gradient", gradients.pop("embedding.weight")[TOKENS], x_BTD.grad)
        for name, gradient in self.layout(gradients).items():
            near(f"the gradient of {name}", gradient, self.theirs.get_parameter(name).grad)


def near(what: str, found: Tensor, expected: Tensor) -> None:
    """Raises `AssertionError` if two tensors differ by more than `TOLERANCE` of the largest number."""
    scale = expected.abs().max().item()
    assert scale > 0, f"{what} is zero"
    off = (found - expected).abs().max().item() / scale
    assert off < TOLERANCE, f"{what}: off by {off:.1e}"


def assert_noticed(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Pair], *replaced: Any) -> None:
    """A pair made before an attribute of comt is `replaced` by a mistake no longer agrees."""
    pair = make()
    monkeypatch.setattr(*replaced)
    with pytest.raises(AssertionError, match="off by"):
        pair.check()
