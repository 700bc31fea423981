"""The methods that CONTRIBUTING.md walks through work as they stand there, recipe row included."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from initialised import initialised, shaken
from same_bits import Reason, assert_same_bits
from small_recipe import load_recipe_text

from comt_cli.layers.initialise import initialise
from comt_cli.layers.kv_cache import KeyValueCache
from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.methods import Method, Wiring, methods
from comt_cli.models.build import empty_network, materialise
from comt_cli.recipe.schema import Catalogue
from comt_cli.tasks import tasks
from comt_cli.tasks.settings.images import ResNetSettings
from comt_cli.tasks.settings.language import ModelSettings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TINY = {"size": "tiny", "width": 16, "ffn_width": 24, "layers": 2, "heads": 2}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@contextlib.contextmanager
def imported(folder: Path, name: str, code: str):
    """The module, from a file of its own."""
    path = folder / f"{name}.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks the annotations up there
    try:
        spec.loader.exec_module(module)
        assert module.__doc__
        assert all(ast.get_docstring(node) for node in ast.parse(code).body if isinstance(node, ast.ClassDef))
        yield module
    finally:
        del sys.modules[name]


@pytest.fixture
def example(tmp_path):
    with imported(tmp_path, "learnable_scale", blocks("python")[0]) as module:
        yield module.LearnableScale


def test_the_example_of_image_classifiers_trains_its_gates(tmp_path):
    with imported(tmp_path, "half_branch", blocks("python")[1]) as module:
        wiring = module.HalfBranch(scale=0.5).wiring()
    model = empty_network(ResNetSettings(size="resnet18", width=8), wiring, classes=10)
    materialise(model, torch.device("cpu"), seed=1)
    gates = [name for name, _ in model.named_parameters() if re.search(r"gate\.\w+$", name)]
    assert len(gates) == 2 * 2 * len(model.blocks)
    model(torch.randn(2, 3, 16, 16)).square().mean().backward()
    assert all(model.get_parameter(name).grad.any() for name in gates)


def test_the_example_with_two_streams_starts_as_pre_ln_learns_and_keeps_the_contract(tmp_path):
    """Recomputed, decoded on stored keys and values, saved and loaded, and in bf16."""
    with imported(tmp_path, "two_lanes", blocks("python")[2]) as module:
        wiring = module.TwoLanes().wiring()
    settings, tokens = ModelSettings(**TINY, norm_eps=1e-12), torch.arange(8)[None]
    model, pre_ln = (initialised(settings, each, 1, vocabulary=11) for each in (wiring, Wiring(PreNorm)))
    torch.testing.assert_close(model(tokens), pre_ln(tokens), rtol=1e-4, atol=1e-5)  # twice the size, under a norm
    model(tokens).square().mean().backward()
    leaks = [p for name, p in model.named_parameters() if ".leak." in name]
    assert len(leaks) == 4
    assert all(leak.grad.any() for leak in leaks)

    plain, saving, loaded = (shaken(initialised(ModelSettings(**TINY), wiring, 1, vocabulary=11)) for _ in range(3))
    saving.activation_checkpointing = True
    for model in (plain, saving):
        model(tokens).square().mean().backward()
    one, other = ({name: p.grad for name, p in model.named_parameters()} for model in (plain, saving))
    assert_same_bits(other, one, Reason.RECOMPUTED, "the gradients")
    with torch.no_grad():
        expected = plain(tokens)
        cache = KeyValueCache(plain.shape, 1, 8, settings.rope_theta, plain.embedding.weight.detach())
        pieces = [F.linear(plain.hidden(piece, cache), plain.head_weight) for piece in tokens.split([5, 1, 2], 1)]
        torch.testing.assert_close(torch.cat(pieces, 1), expected, rtol=1e-4, atol=1e-5)
        torch.save(plain.state_dict(), tmp_path / "model.pt")
        initialise(loaded, seed=9)
        loaded.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
        assert_same_bits(loaded(tokens), expected, Reason.SAVED, "the logits")
        found = plain.to(torch.bfloat16)(tokens)
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).norm() < 0.05 * expected.norm()


def test_the_example_trains_what_it_says(example):
    method: Method = example(start=0.5)
    wirings = method.wiring(), Wiring(method.wiring().residual)
    model, plain = (initialised(ModelSettings(**TINY), each, 1, vocabulary=11) for each in wirings)
    scales = {name: p for name, p in model.named_parameters() if name.endswith(".scale")}
    assert len(scales) == 7 * 2
    assert all(scale.item() == 0.5 for scale in scales.values())
    model(torch.arange(8)[None]).square().mean().backward()
    assert all(scale.grad.any() for scale in scales.values())
    counts = [sum(p.numel() for p in m.parameters()) for m in (model, plain)]
    assert counts[0] - counts[1] == 14


def test_its_row_stands_in_a_recipe(example):
    recipe = (ROOT / "recipes" / "comt" / "table3.yaml").read_text(encoding="utf-8")
    assert recipe.count("\nrows:\n") == 1
    recipe = recipe.replace("\nrows:\n", "\nrows:\n" + blocks("yaml")[0])
    loaded = load_recipe_text(recipe, Catalogue({**methods(), example.name: example}, tasks()))
    assert loaded.methods["pre-ln+scale"]["name"] == "learnable-scale"
    assert loaded.methods["pre-ln+scale"]["start"] == 1.0


def test_the_method_of_readme_gates_what_writes_to_the_residual_stream(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = (block for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S) if "class HalfGate" in block)
    with imported(tmp_path, "half_gate", code) as module:
        wiring = module.HalfGate().wiring()
        assert sorted(wiring.gates) == ["down_proj", "o_proj"]
