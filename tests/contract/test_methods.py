"""The contract of every method: one set of tests over all that there are, found as the program finds them.

A method that is put into `comt_cli/methods/` is tested here without a line being added, except for what its
documentation promises about its initial state (`INITIAL_STATE`).
"""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from comt_cli.layers.gates import ComtGate, Gate, Site, TransponderGate
from comt_cli.layers.initialise import initialise
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual import RESIDUAL_CONNECTIONS, PreNorm
from comt_cli.methods import method_from, methods
from comt_cli.methods.base import PROJECTIONS, ResidualName, Wiring
from comt_cli.models.llama import Llama
from comt_cli.recipe.settings import ModelSettings

METHODS = {name: {"name": name} for name in methods()}
METHODS["post-ln+comt"] = {"name": "comt", "residual": "post-norm"}
METHODS["post-ln+transponder"] = {"name": "transponder", "residual": "post-norm"}
# Small, with depth enough for Mix-LN's quarter, heads that share keys, and a width that no power of two hides.
SETTINGS = ModelSettings(size="tiny", width=48, ffn_width=88, layers=4, heads=4, kv_heads=2)
VOCABULARY = 61
TOKENS = torch.randint(VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(0))

every_method = pytest.mark.parametrize("options", METHODS.values(), ids=list(METHODS))


def wiring_of(options: dict) -> Wiring:
    return method_from(options).wiring()


def built(wiring: Wiring, settings: ModelSettings = SETTINGS, seed: int = 1) -> Llama:
    """A model whose every parameter was initialised; what was not stays NaN."""
    model = Llama(settings, VOCABULARY, wiring)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    initialise(model, seed)
    return model


def shaken(model: Llama) -> Llama:
    """As if trained a little: gates far from their start, gains that are not one."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def future_leaks(model: Llama, tokens_BT: Tensor) -> list[int]:
    """The positions whose logits change, by any bit, when a later token does.

    No tolerance: shapes stay equal, so the same instructions run on the same numbers.
    """
    with torch.no_grad():
        before = model(tokens_BT)
        leaks = []
        for t in range(tokens_BT.shape[1] - 1):
            changed = tokens_BT.clone()
            changed[:, t + 1 :] = (changed[:, t + 1 :] + 7) % VOCABULARY
            if not torch.equal(model(changed)[:, : t + 1], before[:, : t + 1]):
                leaks.append(t)
    return leaks


@every_method
def test_the_future_does_not_leak(options):
    model = shaken(built(wiring_of(options)))
    assert future_leaks(model, TOKENS) == []
    changed = TOKENS.clone()
    changed[:, 5] = (changed[:, 5] + 1) % VOCABULARY
    with torch.no_grad():  # and the present does arrive
        assert not torch.equal(model(changed)[:, 5:], model(TOKENS)[:, 5:])


class PoolingGate(ComtGate):
    """What must never be published: a gate that looks at the mean over the sequence, as squeeze-and-excitation does."""

    def values(self, u_Tr: Tensor | None) -> dict[str, Tensor]:
        return super().values(u_Tr.mean(dim=1, keepdim=True).expand_as(u_Tr))


def test_the_causality_check_catches_a_gate_that_pools_over_the_sequence():
    for site in PROJECTIONS:
        gate = partial(PoolingGate, hidden=2, init="torch-linear")
        leaks = future_leaks(shaken(built(Wiring(PreNorm, {site: gate}))), TOKENS)
        # A query's gate at t = 0 is the one harmless place: the first token can only look at itself.
        assert leaks == list(range(11)) or (site in ("q_proj", "k_proj") and leaks == list(range(1, 11))), site


@every_method
def test_rows_of_a_batch_do_not_see_each_other(options):
    model = shaken(built(wiring_of(options)))
    others = TOKENS.clone()
    others[1:] = (others[1:] + 3) % VOCABULARY
    with torch.no_grad():
        together, alone = model(TOKENS), model(TOKENS[:1])
        assert torch.equal(model(others)[0], together[0])
    # Another shape may sum in another order: 4 blocks of fp32 sums over at most 88 terms of logits of order 1 to 10.
    torch.testing.assert_close(together[:1], alone, rtol=1e-4, atol=1e-4)


@every_method
def test_padding_on_the_right_changes_nothing(options):
    model = shaken(built(wiring_of(options)))
    padded = F.pad(TOKENS, (0, 5), value=0)
    with torch.no_grad():
        torch.testing.assert_close(model(padded)[:, :12], model(TOKENS), rtol=1e-4, atol=1e-4)  # as above


def loss_of(model: Llama) -> Tensor:
    logits = model(TOKENS)
    return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY).float(), TOKENS[:, 1:].reshape(-1))


@every_method
def test_gradients_reach_every_parameter(options):
    model = built(wiring_of(options))
    loss_of(model).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if isinstance(model.get_submodule(name.rpartition(".")[0]), Projections):
            weights = model.get_submodule(name.rpartition(".")[0]).sites
            for site, part in zip(weights, parameter.grad.split([s.d_out for s in weights]), strict=True):
                assert part.any(), (name, site.name)
        assert parameter.grad.any(), name


@every_method
def test_every_parameter_is_initialised(options):
    model = built(wiring_of(options))
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
    assert loss_of(model).isfinite()


@every_method
def test_one_seed_gives_every_method_the_same_network(options):
    """Runs of different methods with one seed are paired: what they share is equal bit for bit, up to a method's own
    scale (DeepNorm's beta)."""
    plain, model = built(Wiring(PreNorm)), built(wiring_of(options))
    shared = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        if name not in shared:  # DeepNorm has no final norm
            assert name == "final_norm.weight"
        elif options["name"] != "deepnorm" or not isinstance(plain.get_submodule(name.rpartition(".")[0]), Projections):
            assert torch.equal(shared[name], parameter), name
    model.requires_grad_(False)
    for (path, ours), (_, theirs) in zip(projections(model), projections(plain), strict=True):
        for site in ours.sites:
            one, other = ours.site_weights()[site.name], theirs.site_weights()[site.name]
            torch.testing.assert_close(one / ours.std_of(site), other / theirs.std_of(site)), (path, site)
    again, different = built(wiring_of(options)), built(wiring_of(options), seed=2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert not any(
        torch.equal(a, b)
        for (name, a), (_, b) in zip(model.named_parameters(), different.named_parameters(), strict=True)
        if a.unique().numel() > 1  # what starts constant, as a norm's gain or an alpha, has nothing to draw
    )


def projections(model: Llama) -> list[tuple[str, Projections]]:
    return [(path, module) for path, module in model.named_modules() if isinstance(module, Projections)]


def test_no_two_tensors_start_alike():
    model = built(wiring_of({"name": "transponder"}))
    sums = [
        weight.double().sum().item() for _, module in projections(model) for weight in module.site_weights().values()
    ]
    sums += [p.double().sum().item() for name, p in model.named_parameters() if ".gates." in name and p.ndim == 2]
    assert len(set(sums)) == len(sums)


@every_method
def test_save_and_load(options, tmp_path):
    model, other = shaken(built(wiring_of(options))), built(wiring_of(options), seed=9)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    with torch.no_grad():
        assert torch.equal(model(TOKENS), other(TOKENS))


@every_method
def test_bf16_is_finite(options):
    model = built(wiring_of(options)).to(torch.bfloat16)
    logits = model(TOKENS)
    assert logits.dtype == torch.bfloat16
    loss = loss_of(model)
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    # Eight bits of mantissa over four blocks; a wrong cast would be off by far more than a few per cent of a nat.
    assert abs(loss.item() - loss_of(built(wiring_of(options))).item()) < 0.05


@every_method
def test_activation_checkpointing_changes_no_gradient(options):
    plain, saving = (built(wiring_of(options)) for _ in range(2))
    saving.activation_checkpointing = True
    for model in (plain, saving):
        loss_of(model).backward()
    for (name, one), (_, other) in zip(plain.named_parameters(), saving.named_parameters(), strict=True):
        assert torch.equal(one.grad, other.grad), name  # the same operations, done twice


@every_method
def test_unknown_options_are_refused(options):
    with pytest.raises(ValidationError, match="unknown_option"):
        method_from({**options, "unknown_option": 1})
    method = method_from(options)
    with pytest.raises(ValidationError, match="frozen"):
        method.residual = "post-norm"  # type: ignore[attr-defined]


def test_an_unknown_method_raises_and_never_falls_through():
    with pytest.raises(KeyError):
        method_from({"name": "lns"})
    with pytest.raises(ValidationError, match="residual"):
        method_from({"name": "comt", "residual": "prenorm"})


def test_a_recipe_can_name_every_residual_connection_and_no_other():
    """Named twice, because the names are checked where no torch, and so no connection, is loaded."""
    assert get_args(ResidualName) == tuple(RESIDUAL_CONNECTIONS)


@pytest.mark.parametrize("name", methods())
def test_a_methods_file_says_its_paper_and_its_deviations(name):
    module = __import__(methods()[name].__module__, fromlist=["__doc__"])
    assert "Deviations:" in module.__doc__
    assert any(year in module.__doc__ for year in map(str, range(2015, 2030)))


# ---- how many parameters


def counted(size: str, wiring: Wiring) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Llama(ModelSettings(size=size), 32000, wiring).parameters())


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("60m", 58_073_600),
        ("71m", 70_578_688),
        ("130m", 134_105_856),
        ("250m", 247_370_496),
        ("350m", 367_969_280),
        ("1b", 1_339_082_752),
    ],
)
def test_the_plain_model_counts_what_the_published_one_does(size, parameters):
    assert counted(size, Wiring(PreNorm)) == parameters


@every_method
@pytest.mark.parametrize("size", ["130m", "1b"])
def test_extra_parameters(options, size):
    """Per projection from d_in to d_out: CoMT adds (d_in + 1) h; Transponder, with one A for both gates,
    (d_in + d_out + 1) r and two alphas. A residual connection adds nothing; DeepNorm leaves out the final norm."""
    shape = ModelSettings(size=size).shape()
    D, W = shape.width, shape.ffn_width
    widths = [(D, D)] * 4 + [(D, W)] * 2 + [(W, D)]
    method = method_from(options)
    extra = {"comt": lambda i, o: (i + 1) * method.hidden, "transponder": lambda i, o: (i + o + 1) * method.rank + 2}
    added = sum(extra[options["name"]](i, o) for i, o in widths) if options["name"] in extra else 0
    without_norm = D if options["name"] == "deepnorm" else 0
    assert counted(size, wiring_of(options)) - counted(size, Wiring(PreNorm)) == added * shape.layers - without_norm
    plain = counted(size, wiring_of(options).without_gates())
    assert counted(size, wiring_of(options)) - plain == added * shape.layers


@pytest.mark.parametrize(
    ("name", "size", "percent"),
    [
        ("comt", "130m", "0.12"),
        ("comt", "250m", "0.14"),
        ("comt", "1b", "0.064"),
        ("transponder", "60m", "1.08"),
        ("transponder", "130m", "1.05"),
        ("transponder", "250m", "1.25"),
    ],
)
def test_extra_parameters_as_the_papers_print_them(name, size, percent):
    plain = counted(size, Wiring(PreNorm))
    ours = 100 * (counted(size, wiring_of({"name": name})) - plain) / plain
    assert f"{ours:.{len(percent) - 2}f}" == percent


# ---- how they start

MEDIUM = ModelSettings(size="tiny", width=256, ffn_width=512, layers=6, heads=4)


@every_method
def test_the_initial_state_is_the_documented_one_and_survives(options):
    """Every linear layer N(0, 0.02^2), every gain 1, except where a method says otherwise."""
    model = built(wiring_of(options), MEDIUM)
    for path, module in model.named_modules():
        if isinstance(module, nn.RMSNorm):
            assert (module.weight == 1).all(), path
    assert std(model.embedding.weight) == pytest.approx(0.02, rel=0.05)
    assert std(model.head.weight) == pytest.approx(0.02, rel=0.05)
    for path, module in projections(model):
        for site in module.sites:
            expected = 0.02
            if options["name"] == "deepnorm":  # Glorot; times (8L)^(-1/4) for all but query and key
                gain = 1 if site.name in ("q_proj", "k_proj") else (8 * 6) ** -0.25
                expected = gain * math.sqrt(2 / (site.d_in + site.d_out))
            # 65536 draws or more: the standard error of a standard deviation is 0.3 %.
            assert std(module.site_weights()[site.name]) == pytest.approx(expected, rel=0.02), (path, site.name)
    gates = [module for module in model.modules() if isinstance(module, Gate)]
    assert len(gates) == (7 * 6 if options["name"] in INITIAL_STATE else 0)
    for gate in gates:
        INITIAL_STATE[options["name"]](gate)


def std(tensor: Tensor) -> float:
    return tensor.detach().double().std().item()


def is_uniform(matrix: Tensor, bound: float) -> None:
    """Within the bound and reaching near it; spread as a uniform one is where there are draws enough to tell."""
    largest = matrix.abs().max().item()
    assert largest <= bound
    if matrix.numel() >= 500:
        assert largest > 0.98 * bound
        assert std(matrix) == pytest.approx(bound / math.sqrt(3), rel=0.1)


def comt_starts(gate: Gate) -> None:
    is_uniform(gate.A, 1 / math.sqrt(gate.A.shape[1]))
    is_uniform(gate.B, 1 / math.sqrt(gate.B.shape[1]))


def transponder_starts(gate: Gate) -> None:
    is_uniform(gate.A, math.sqrt(6 / gate.A.shape[1]))
    is_uniform(gate.B_channel, math.sqrt(6 / gate.B_channel.shape[1]))
    is_uniform(gate.B_scalar, math.sqrt(6 / gate.B_scalar.shape[1]))
    assert gate.log_alpha_channel == 0
    assert gate.log_alpha_scalar == 0


INITIAL_STATE = {"comt": comt_starts, "transponder": transponder_starts}


def gate_values_at_the_start(gate_class, kind: str, count: int = 120, **options) -> Tensor:
    """Values of many fresh gates, each on many tokens of unit variance; [gates, tokens, channels]."""
    site = Site("q_proj", 0, 12, 768, 64)
    x_TD = torch.randn(32, 768, generator=torch.Generator().manual_seed(3))
    values = []
    for seed in range(count):
        gate = gate_class(site, **options)
        initialise(gate, seed)
        with torch.no_grad():
            values.append(gate.values(x_TD @ gate.summary().T)[kind])
    return torch.stack(values)


def test_comts_gates_start_near_a_half():
    """B is symmetric around 0, so the expectation is exactly 1/2; the .51 of single networks is their draw.

    B's two entries have standard deviation .41 each and phi is about .5, so z has .29 and gamma a quarter of that, .07.
    The standard error of the mean over 120 gates is .007.
    """
    values = gate_values_at_the_start(ComtGate, "scalar", hidden=2, init="torch-linear")
    assert values.mean().item() == pytest.approx(0.5, abs=0.02)
    assert std(values) == pytest.approx(0.07, abs=0.02)
    normal = gate_values_at_the_start(ComtGate, "scalar", hidden=2, init="normal")
    assert normal.mean().item() == pytest.approx(0.5, abs=0.005)  # what the model-wide overwriting came to
    assert std(normal) < 0.01


@pytest.mark.parametrize("kind", ["channel", "scalar"])
def test_transponders_gates_start_around_one(kind):
    """Mean about 1, standard deviation about .35: not the identity, because phi is not 0 at 0."""
    values = gate_values_at_the_start(TransponderGate, kind, rank=8, init="kaiming-uniform")
    assert values.mean().item() == pytest.approx(1.0, abs=0.05)
    assert std(values) == pytest.approx(0.35, abs=0.08)
    assert values.min() > 0
    assert values.max() < 2


def test_a_module_that_does_not_say_how_it_starts_is_refused():
    with pytest.raises(TypeError, match=r"0 \(Linear\) holds parameters but has no initialise"):
        initialise(nn.Sequential(nn.Linear(2, 2)), 1)


def test_tied_embeddings_are_one_matrix():
    tied = built(Wiring(PreNorm), SETTINGS.model_copy(update={"tied_embeddings": True}))
    untied = built(Wiring(PreNorm))
    assert "head.weight" not in tied.state_dict()
    difference = sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters())
    assert difference == VOCABULARY * 48
    loss_of(tied).backward()
    same = copy.deepcopy(untied)
    with torch.no_grad():
        same.head.weight.copy_(same.embedding.weight)
    assert torch.equal(same(TOKENS), tied(TOKENS))
    loss_of(same).backward()
    torch.testing.assert_close(tied.embedding.weight.grad, same.embedding.weight.grad + same.head.weight.grad)
