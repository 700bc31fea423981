"""The contract of every method of language models: one set of tests over all that there are, found as the program finds
them.

A method that is put into `comt_cli/methods/` is tested here without a line being added. What each promises of its own,
parameters and initial state, stands in `test_parameter_counts` and `test_initial_state`; methods of image classifiers
are tested in `test_image_methods`.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from method_cases import TOKENS, VOCABULARY, built, every_method, loss_of, projections, shaken, wiring_of
from pydantic import ValidationError
from torch import Tensor

from comt_cli.layers.gates import ComtGate
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.layers.residual.pre_norm import PreNorm
from comt_cli.methods import method_from, methods
from comt_cli.methods.base import (
    DECODER_SITES,
    MAP_SITES,
    PROJECTIONS,
    RESIDUAL_CONNECTIONS,
    ResidualName,
    Wiring,
    residual_connection,
)
from comt_cli.models.llama import Llama
from comt_cli.recipe.schema import Sites
from comt_cli.tasks import task_of


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


@every_method
def test_gradients_reach_every_parameter(options):
    # Away from the start: a branch behind a zero (ReZero), or a matrix before one (LAuReL), has no gradient there.
    model = shaken(built(wiring_of(options)))
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
        if name not in shared:  # ReZero has no norms, DeepNorm no final one
            assert name.endswith("norm.weight")
        elif not isinstance(plain.get_submodule(name.rpartition(".")[0]), Projections):
            assert torch.equal(shared[name], parameter), name
    model.requires_grad_(False)
    for (path, ours), (_, theirs) in zip(projections(model), projections(plain), strict=True):
        for site in ours.sites:
            one, other = ours.site_weights()[site.name], theirs.site_weights()[site.name]
            if options["name"] == "wider" and site.name in ("gate_proj", "up_proj", "down_proj"):
                assert one.numel() > other.numel()
            else:
                torch.testing.assert_close(one / ours.std_of(site), other / theirs.std_of(site)), (path, site)
    again, different = built(wiring_of(options)), built(wiring_of(options), seed=2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert not any(
        torch.equal(a, b)
        for (name, a), (_, b) in zip(model.named_parameters(), different.named_parameters(), strict=True)
        # What starts as fixed numbers, as a norm's gain, an alpha or LAuReL's A, has nothing to draw.
        if a.unique().numel() > 1 and not name.endswith("low_rank.A")
    )


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
def test_bf16_is_finite_and_near_fp32(options):
    model = shaken(built(wiring_of(options))).to(torch.bfloat16)
    logits = model(TOKENS)
    assert logits.dtype == torch.bfloat16
    loss = loss_of(model)
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    # The same network in fp32, from the weights as bf16 holds them. Eight bits of mantissa, rounded some fifty times
    # along four blocks; a factor that is left out or cast to nothing changes the logits as a whole.
    exact = copy.deepcopy(model).float()(TOKENS)
    assert (logits.float() - exact).norm() < 0.05 * exact.norm()


@every_method
def test_activation_checkpointing_changes_no_gradient(options):
    # Away from the start, where zeros would hide what is remembered (LAuReL-PA) and whole branches (ReZero).
    plain, saving = (shaken(built(wiring_of(options))) for _ in range(2))
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
    """Their names are checked where no torch, and so no connection, is loaded."""
    assert get_args(ResidualName) == tuple(RESIDUAL_CONNECTIONS)
    kinds = [residual_connection(name) for name in RESIDUAL_CONNECTIONS]
    assert len({*kinds}) == len(kinds)
    assert all(issubclass(kind, ResidualConnection) for kind in kinds)


def test_tasks_offer_the_sites_that_their_models_have():
    """A task is declared below methods and models, and says again what these do."""
    assert task_of("train-lm").sites == DECODER_SITES
    assert task_of("train-resnet").sites == MAP_SITES


def test_a_method_is_for_the_models_whose_stream_and_sites_it_names():
    by_command = {command: set(methods(command)) for command in ("train-lm", "train-resnet")}
    assert by_command["train-lm"] | by_command["train-resnet"] == set(methods())
    assert by_command["train-lm"] & by_command["train-resnet"] == {"highway", "rezero", "scaled"}
    assert "addition" not in methods("train-lm")
    assert all("rezero" in methods(command) for command in ("train-lm", "train-resnet"))
    assert all(methods()["rezero"].fits(Sites(stream, ())) for stream in ("tokens", "maps"))
    assert methods()["sdpa-gate"].fits(Sites("tokens", ("q_proj", "sdpa")))
    assert not methods()["sdpa-gate"].fits(Sites("tokens", ("q_proj",)))
    with pytest.raises(ValidationError, match="no method of language models to be like is called 'comt-pixel'"):
        method_from({"name": "wider", "like": "comt-pixel"})


@pytest.mark.parametrize("name", methods())
def test_a_methods_file_says_its_paper_and_its_deviations(name):
    module = __import__(methods()[name].__module__, fromlist=["__doc__"])
    assert "Deviations:" in module.__doc__
    assert any(year in module.__doc__ for year in map(str, range(2015, 2030)))
