"""A model whose operations are fused is the same model: values and gradients, for each kind of method.

Here the kernels' place is taken by autograd on their definition (`reference_kernels`), in float64, so that what is
tested is how the model uses them. The kernels themselves are held to that definition in tests/unit/kernels.
"""

from __future__ import annotations

from functools import partial

import pytest
import reference_kernels
import torch
from initialised import shaken
from method_cases import METHODS, SETTINGS, TOKENS, built, each_wiring, projections, wiring_of
from torch import Tensor

from comt_cli.kernels.choice import Choice
from comt_cli.layers import attention, projection
from comt_cli.models import kernels
from comt_cli.models.build import materialise
from comt_cli.models.kernels import use_kernels
from comt_cli.models.llama import Llama
from comt_cli.models.pretrained import adapt

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def by_definition(monkeypatch):
    """Every operation that can be fused is, by the definition."""
    reference_kernels.stand_in(monkeypatch)
    monkeypatch.setattr(kernels, "choose", lambda *_, **__: Choice(True, "for the test"))


def pair(options: dict) -> tuple[Llama, Llama]:
    """The same model twice, as it is and fused."""
    models = [shaken(built(wiring_of(options)).double()) for _ in range(2)]
    use_kernels(models[1], "fused", CPU, torch.float64, compiled=False)
    return models[0], models[1]


def gradients(model: Llama) -> dict[str, Tensor]:
    model(TOKENS).log_softmax(-1)[..., 3].sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@each_wiring
def test_the_same_logits_and_gradients(options):
    """float64; sums in other orders over four blocks: 1e-11 of the largest value.

    Gradients 1e-6: those of the gates at q and k are taken from what was turned, which cosines in fp32 turn back to
    1e-7, and the smallest of them are sums that cancel.
    """
    plain, fused = pair(options)
    with torch.no_grad():
        expected, found = plain(TOKENS), fused(TOKENS)
    assert (found - expected).abs().max() <= 1e-11 * expected.abs().max()
    wanted = gradients(plain)
    for name, gradient in gradients(fused).items():
        assert (gradient - wanted[name]).abs().max() <= 1e-6 * wanted[name].abs().max() + 1e-8, name


@pytest.mark.parametrize("name", ["transponder", "post-ln+transponder", "all-gate"])
def test_filling_rows_up_changes_nothing(name, monkeypatch):
    """On a GPU rows end at multiples of 8, of zeros; here everything must then be a multiple of 5, which nothing is."""
    plain, _ = pair(METHODS[name])
    expected = plain(TOKENS)
    expected_gradients = gradients(plain)
    for module in (attention, projection):
        monkeypatch.setattr(module, "aligned", lambda width, like: -(-width // 5) * 5)
    for model in pair(METHODS[name]):
        assert model.blocks[0].mlp.inner(model.embedding(TOKENS)).shape[-1] == 90
        found = model(TOKENS)
        with torch.no_grad():
            for _, module in projections(model):
                module.freeze()
            assert (model(TOKENS) - found).abs().max() <= 1e-12 * found.abs().max()
            model.train()
        assert (found - expected).abs().max() <= 1e-11 * expected.abs().max()
        for parameter, gradient in gradients(model).items():
            wanted = expected_gradients[parameter]
            assert (gradient - wanted).abs().max() <= 1e-6 * wanted.abs().max() + 1e-8, parameter


def test_lora_is_added_before_fused_gates():
    models = [built(wiring_of(METHODS["all-gate"])) for _ in range(2)]
    for model in models:
        adapt(model, 3, 2.0, ())
        materialise(model, CPU, 0)
        shaken(model).double()
    use_kernels(models[1], "fused", CPU, torch.float64, compiled=False)
    expected, found = map(gradients, models)
    assert {name for name in expected if expected[name] is not None} == {name for name in expected if ".lora." in name}
    for name in expected:
        if expected[name] is not None:
            assert (found[name] - expected[name]).abs().max() <= 1e-6 * expected[name].abs().max() + 1e-8, name


def calls_of(options: dict, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often a forward pass calls each operation."""

    def counted(name, original, *arguments):
        counts[name] += 1
        return original(*arguments)

    counts = dict.fromkeys(("modulate", "heads", "swiglu", "add_norm"), 0)
    for name in counts:
        monkeypatch.setattr(reference_kernels, name, partial(counted, name, getattr(reference_kernels, name)))
    with torch.no_grad():
        pair(options)[1](TOKENS)
    return counts


@pytest.mark.parametrize(
    ("name", "per_block"),
    [
        ("pre-ln", {"heads": 1, "swiglu": 1, "add_norm": 2}),
        ("two-summaries", {"heads": 1, "swiglu": 1, "add_norm": 2}),
        ("post-ln+transponder", {"heads": 1, "swiglu": 1, "modulate": 2}),
        ("transponder-path", {"heads": 1, "swiglu": 1}),
        ("all-gate", {}),
        ("transponder-static", {}),
        ("sdpa-gate", {"heads": 1, "swiglu": 1, "add_norm": 2}),
        ("headwise-of-12", {"heads": 1, "swiglu": 1, "add_norm": 2}),
    ],
)
def test_what_is_fused(name, per_block, monkeypatch):
    """Nothing falls back unseen: every operation of every block, and only gates of another form are left out."""
    counts = calls_of(METHODS[name], monkeypatch)
    assert {op: count for op, count in counts.items() if count} == {
        op: count * SETTINGS.shape().layers for op, count in per_block.items()
    }


@pytest.mark.parametrize("name", ["transponder", "transponder-static", "sdpa-gate", "headwise-of-12", "sas"])
def test_freezing_changes_nothing_and_is_undone(name):
    """A method for each kind of gate, whose matrices are joined; and SAS, whose gates are no gates of sites."""
    plain, _ = pair(METHODS[name])
    with torch.no_grad():
        expected = plain(TOKENS)
        for _, module in projections(plain):
            module.freeze()
        # float64: the same sums over weights in another layout
        torch.testing.assert_close(plain(TOKENS), expected, rtol=1e-11, atol=1e-11)
        plain.load_state_dict({name: 1.1 * value for name, value in plain.state_dict().items()})
        assert not torch.allclose(plain(TOKENS), expected, rtol=1e-6), "what was loaded would not be seen"
        for _, module in projections(plain):
            module.freeze()
        expected = plain(TOKENS)
        for parameter in plain.parameters():
            parameter.mul_(1.1)
        assert not torch.allclose(plain.train()(TOKENS), expected, rtol=1e-6), "training would not see its own updates"
        for _, module in projections(plain):
            module.freeze()
        assert plain.float()(TOKENS).dtype == torch.float32


def test_attention_that_the_kernel_does_not_know_is_recorded_as_not_fused():
    """Of any block: some of these models' first blocks could have it. A mixture of values behind the kernel can."""
    for name in ("svformer", "lime", "muddformer+comt", "resformer-learned", "value-embeddings"):
        model = built(wiring_of(METHODS[name]))
        choices = use_kernels(model, "fused", CPU, torch.float32, compiled=False)
        fits = name in ("resformer-learned", "value-embeddings")
        assert choices["heads"].fused == fits
        assert fits or "shared keys or values" in choices["heads"].reason
        assert {block.attention.fused for block in model.blocks} == {fits}
        assert choices["swiglu"].fused
