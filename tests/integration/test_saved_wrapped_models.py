"""Wrapped models as folders: written by transformers' own `save_pretrained`, restored without comt and with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from same_bits import Reason, assert_same_bits
from test_wrapped_models import FAMILIES, HYPER, LAUREL_PA, SEVERAL, TOKENS, close, made, moved, out
from torch import nn

from comt_cli.errors import UserError
from comt_cli.exchange.loaded import Loaded, LoadedModel
from comt_cli.library.restored import load
from comt_cli.library.saving import CODE
from comt_cli.library.wrap import unwrap, wrap

transformers = pytest.importorskip("transformers")

CASES = {
    **{f"{family} gates": (family, SEVERAL["gates"]) for family in FAMILIES},
    **{f"{family} sdpa": (family, "sdpa-gate") for family in ("LlamaForCausalLM", "Olmo2ForCausalLM", "GPT2Model")},
    **{f"GPT2LMHeadModel {method}": ("GPT2LMHeadModel", SEVERAL[method]) for method in ("sdpa", "history", "streams")},
    "Qwen3ForCausalLM streams": ("Qwen3ForCausalLM", {"name": "mhc", "n": 2}),
    "LlamaForCausalLM history": ("LlamaForCausalLM", LAUREL_PA),
    "LlamaForCausalLM path": ("LlamaForCausalLM", {"name": "transponder-path", "rank": 2}),
    "LlamaForCausalLM eau": ("LlamaForCausalLM", "eau"),
    "LlamaForCausalLM denseformer": ("LlamaForCausalLM", "denseformer"),
    "LlamaForCausalLM delta": ("LlamaForCausalLM", "delta-attention-residuals"),
}
TIED = "SmolLM3ForCausalLM gates"
DEEP = "LlamaForCausalLM denseformer"
"""Of twelve layers: config.json sorts keys as texts, 10 before 2."""


def a_model(name: str) -> Any:
    family, method = CASES[name]
    more = {"tie_word_embeddings": True} if name == TIED else {"num_hidden_layers": 12} if name == DEEP else {}
    return moved(wrap(made(family, **more), method, start="paper"))


def generated(model: Any) -> list[list[int]]:
    ends = {"pad_token_id": 0, "eos_token_id": None, "do_sample": False, "max_new_tokens": 6}
    return model.generate(TOKENS[:, :4], **ends).tolist()


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def expected(root) -> dict[str, dict[str, Any]]:
    """What was written."""
    every = {}
    for name in CASES:
        model = a_model(name)
        config = model.config.to_dict()
        model.save_pretrained(root / name)
        assert model.config.to_dict() == config
        every[name] = {"tokens": TOKENS, "output": out(model), "auto": "AutoModel"}
        if model.can_generate():
            every[name] |= {"auto": "AutoModelForCausalLM", "generated": generated(model)}
    return every


@pytest.fixture(scope="module")
def found(root, expected) -> dict[str, dict[str, Any]]:
    """What a process without comt found."""
    torch.save(expected, root / "expected.pt")
    program = Path(__file__).with_name("loading_wrapped.py")
    own = {"HF_HOME": str(root / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-I", program, root], env={**os.environ, **own}, check=True, cwd=root, timeout=300)
    return json.loads((root / "found.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_is_restored_without_comt(name, root, found) -> None:
    each, family = found[name], CASES[name][0]
    assert each["class"] == f"Comt{family}"
    assert family in each["bases"]
    assert each["off"] < 1e-6
    assert each["odd"] == []
    assert each.get("generates", True)
    assert each["back_off"] == 0
    assert each["copies_off"] == [0, 0]
    assert each["narrow_off"] < 0.1  # some of bf16's roundings, of 2^-9 each
    assert each["without_gradient"] == []
    assert "trust_remote_code" in each["without_trust"]
    assert len((root / name / CODE).read_text().splitlines()) <= 500


@pytest.mark.parametrize("name", CASES)
def test_is_restored_with_comt_and_without_its_code(name, root, expected, tmp_path) -> None:
    code = root / name / CODE
    code.rename(tmp_path / CODE)
    try:
        model = load(root / name, Loaded).model
    finally:
        (tmp_path / CODE).rename(code)
    assert_same_bits(out(model), expected[name]["output"], Reason.SAVED)
    model.save_pretrained(tmp_path / "again")
    for file in ("config.json", CODE):
        assert (tmp_path / "again" / file).read_text() == (root / name / file).read_text()
    assert isinstance(model, getattr(transformers, CASES[name][0]))
    unwrap(model, discard=True)
    assert_same_bits(out(model), out(plain_of(name)), Reason.SAVED)
    assert type(model) is getattr(transformers, CASES[name][0])


def plain_of(name: str) -> nn.Module:
    return unwrap(a_model(name), discard=True)
