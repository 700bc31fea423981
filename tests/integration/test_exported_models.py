"""Exported language models of every method compute the same in a process that has transformers and no comt."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import torch
from initialised import shaken
from method_cases import METHODS, SETTINGS, TOKENS, built, wiring_of
from without_comt import found_by

from comt_cli.exchange.loaded import LoadedModel
from comt_cli.library.export import CODE, MOST_LINES, write_huggingface
from comt_cli.methods import methods
from comt_cli.methods.base import Wiring

pytest.importorskip("transformers")

PLAIN = ("pre-ln", "scaled-init", "wider")
WHOLE = ("transponder", "hyper-connections", "lime", "rezero")
"""Those that are also computed in bf16, with other attention, written again and trained."""
NAMES = (
    *methods("train-lm"),
    "headwise",
    "two-summaries",
    "muddformer+comt",
    "attention-residuals+transponder",
    "tied",
)
OWN = '''
"""A connection and a gate of a user's own."""
import torch
from torch import Tensor

from comt_cli.layers.gates import Gate
from comt_cli.layers.initialise import Initialised
from comt_cli.layers.learned import Constant
from comt_cli.layers.residual.base import NormedResidual, State

FLOOR = 0.25


def _softened(x: Tensor, by: float) -> Tensor:
    return torch.tanh(x * by) / by


class Softened(NormedResidual, Initialised):
    """y = x + s soft(F(N(x)))."""

    def __init__(self, site, by: float = 2.0) -> None:
        super().__init__(site)
        self.by, self.s, self.unused = by, Constant(1.0), site.norm
        self.register_buffer("shift", torch.zeros(site.width))

    def step(self, state: State, branch) -> State:
        x = state.stream
        return State(x + self.shift + self.s() * _softened(branch(self.norm(x)), self.by), sources=(x,))

    def initialise(self, draw) -> None:
        draw.normal_(self.shift, "shift", 0.1)


class FloorGate(Gate):
    """max(sigmoid(w), floor) a channel."""

    def __init__(self, d_out: int) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.empty(d_out))

    def down_projection(self) -> None:
        return None

    def values(self, u: Tensor | None) -> dict[str, Tensor]:
        return {"channel": torch.sigmoid(self.w).clamp(min=FLOOR)}

    def initialise(self, draw) -> None:
        draw.normal_(self.w, "w", 1.0)
'''


@pytest.fixture(scope="module")
def own_wiring(tmp_path_factory):
    """The wiring of a user's own file."""
    path = tmp_path_factory.mktemp("own") / "own_parts.py"
    path.write_text(OWN)
    spec = importlib.util.spec_from_file_location("own_parts", path)
    module = sys.modules["own_parts"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield Wiring(module.Softened, {"q_proj": module.FloorGate.at, "mlp": module.FloorGate.at})
    del sys.modules["own_parts"]


def a_model(name: str, own: Wiring) -> Any:
    if name == "tied":
        settings = SETTINGS.model_copy(update={"tied_embeddings": True, "rope_theta": 500.0, "norm_eps": 1e-3})
        return shaken(built(wiring_of(METHODS["comt"]), settings)).eval()
    return shaken(built(own if name == "own" else wiring_of(METHODS[name]))).eval()


@pytest.fixture(scope="module")
def found(tmp_path_factory, own_wiring) -> dict[str, dict[str, Any]]:
    """What the other process found of every exported model."""
    root, expected = tmp_path_factory.mktemp("exported"), {}
    for name in (*NAMES, "own"):
        model = a_model(name, own_wiring)
        write_huggingface(LoadedModel(model, name, "a test", context_length=128), root / name)
        with torch.no_grad():
            expected[name] = {"tokens": TOKENS, "logits": model(TOKENS)}
            if name in WHOLE:
                expected[name] |= {"whole": torch.ones(()), "bf16": model.to(torch.bfloat16)(TOKENS)}
        expected[name]["learned"] = torch.tensor(sum(each.numel() for each in model.parameters()))
    torch.save(expected, root / "expected.pt")
    found: dict[str, dict[str, Any]] = found_by("loading_exported.py", root)
    for name, each in found.items():
        code = root / name / CODE
        each["lines"] = len(code.read_text().splitlines()) if code.exists() else 0
        each["expected_learned"] = int(expected[name]["learned"])
    return found


@pytest.mark.parametrize("name", [*NAMES, "own"])
def test_every_method_computes_the_same_without_comt(name, found) -> None:
    each = found[name]
    assert each["class"] == ("LlamaForCausalLM" if name in PLAIN else "ComtForCausalLM")
    assert each["off"] < 1e-5
    assert each["padded_off"] < 1e-5
    assert each["as_cached"]
    assert each["streams"] == SETTINGS.shape().layers + 1
    assert each["learned"] == each["expected_learned"]
    assert each["lines"] <= MOST_LINES


@pytest.mark.parametrize("name", WHOLE)
def test_other_ways_to_compute_it(name, found) -> None:
    each = found[name]
    assert each["eager_off"] < 1e-5
    assert each["back_off"] == 0
    assert each["body_off"] == 0
    assert each["bf16_off"] < 0.03  # a few of bf16's roundings, of 2^-9 each, over four blocks
    assert each["trains"]
    assert each["backend_off"] < 1e-5
    assert "trust_remote_code" in each["without_trust"]
