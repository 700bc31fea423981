"""The contract of every method: one test over all tasks, and all methods that fit them, on small networks.

A method that is put into `comt_cli/methods/` is tested here without a line being added, on the first task that has it;
how other tasks run their models is tested with a few kinds of wiring. What each method promises of its own, parameters
and initial state, is in `test_parameter_counts` and `test_initial_state`.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from image_method_cases import IMAGE_KINDS, built_resnet
from initialised import shaken
from method_cases import KINDS, TOKENS, VOCABULARY, built, loss_of_logits, projections, wiring_of
from naive import D, branch, stack
from pydantic import ValidationError
from same_bits import Reason, assert_same_bits, differ
from small_networks import CASES, SMALL, Case, future_leaks, plain_model, pooling_gate
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.convolution import BatchNorm
from comt_cli.layers.gates import Gate
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.base import NormedResidual, ResidualConnection, State
from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.layers.residual.scaled import FollowsTraining
from comt_cli.methods import method_from, methods
from comt_cli.methods.base import ConnectionMethod, ResidualName, Wiring, residual_connection, residual_connections
from comt_cli.models.base import Model
from comt_cli.models.build import empty_network
from comt_cli.tasks import task_of, tasks
from comt_cli.tasks.base import (
    DECODER_SITES,
    MAP_SITES,
    PROJECTIONS,  # fmt: skip
    Sites,
)
from comt_cli.tasks.settings.images import ResNetSettings


def test_every_task_and_every_method_is_here():
    assert SMALL.keys() == {task.command for task in tasks().values()}
    for command, small in SMALL.items():
        assert {options["name"] for options in small.methods.values()} == set(methods(command))
    assert {case.options["name"] for case in CASES} == set(methods())


def computed_by(case: Case) -> set[type[nn.Module]]:
    """The classes of its gates, residual connections and norms; of one that only starts differently, its parent."""
    model = empty_network(case.small.networks[case.network], wiring_of(case.options), **case.small.dimensions)
    kinds = {type(module) for module in model.modules() if isinstance(module, Gate | ResidualConnection)}
    kinds |= {type(module) for module in model.modules() if "norm" in type(module).__module__}
    return {kind if {"forward", "step"} & vars(kind).keys() else kind.__mro__[1] for kind in kinds}


@pytest.mark.parametrize(("command", "kinds"), [("train-lm", KINDS), ("train-resnet", IMAGE_KINDS)])
def test_kinds_are_complete(command, kinds):
    """No class of gate, connection or norm is left out where a test computes with one method of each kind."""
    network = next(iter(SMALL[command].networks))
    found = {name: computed_by(Case(command, network, name)) for name in SMALL[command].methods}
    covered = set().union(*(found[name] for name in kinds))
    assert set().union(*found.values()) - covered <= {NormedResidual, ResidualConnection}


# ---- the contract


def check_start(case: Case, model: Model) -> None:
    """Runs of different methods with one seed are paired: what they share is equal bit for bit, up to a method's own
    scale (DeepNorm's beta). And every number is initialised."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert tensor.isfinite().all(), name
    plain, shared = plain_model(case.command, case.network), dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        if name not in shared:  # ReZero has no norms, DeepNorm no final one, a dropped gamma no weight
            assert name.endswith(("norm.weight", "norm.bias"))
        elif not isinstance(plain.get_submodule(name.rpartition(".")[0]), Projections):
            assert_same_bits(shared[name], parameter, Reason.SAME_CALL, name)
    for (path, ours), (_, theirs) in zip(projections(model), projections(plain), strict=True):
        for site in ours.sites:
            one, other = ours.site_weights()[site.name], theirs.site_weights()[site.name]
            if case.options["name"] == "wider" and site.name in ("gate_proj", "up_proj", "down_proj"):
                assert (one.numel() > other.numel()) == ("of" not in case.options)
            else:
                message = f"{path} {site.name}"
                torch.testing.assert_close(one / ours.std_of(site), other / theirs.std_of(site), msg=message)
    again, different = case.built(), case.built(seed=2)
    assert_same_bits(shared, dict(again.named_parameters()), Reason.SAME_CALL)
    for (name, one), (_, other) in zip(model.named_parameters(), different.named_parameters(), strict=True):
        # What starts as fixed numbers, as a norm's gain, an alpha or LAuReL's A, has nothing to draw.
        assert one.unique().numel() == 1 or name.endswith("low_rank.A") or differ(one, other), name


def check_gradients(case: Case, model: Model) -> None:
    """They reach every parameter, and recomputing blocks changes none."""
    plain, saving = copy.deepcopy(model), copy.deepcopy(model)
    saving.activation_checkpointing = True
    for each in (plain, saving):
        case.loss(each).backward()
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        owner = plain.get_submodule(name.rpartition(".")[0])
        parts = parameter.grad.split(owner.widths) if isinstance(owner, Projections) else [parameter.grad]
        assert all(part.any() for part in parts), name
    one, other = ({name: each.grad for name, each in model.named_parameters()} for model in (plain, saving))
    assert_same_bits(other, one, Reason.RECOMPUTED, "the gradients")
    assert_same_bits(dict(saving.named_buffers()), dict(plain.named_buffers()), Reason.RECOMPUTED)


def check_causality(model: Model, tokens_BT: Tensor) -> None:
    """No position sees a later one, nor padding on the right, and the present does arrive."""
    assert future_leaks(model, tokens_BT, VOCABULARY) == []
    changed = tokens_BT.clone()
    changed[:, 5] = (changed[:, 5] + 1) % VOCABULARY
    with torch.no_grad():
        assert differ(model(changed)[:, 5:], model(tokens_BT)[:, 5:])
        padded = model(F.pad(tokens_BT, (0, 5), value=0))[:, : tokens_BT.shape[1]]
        torch.testing.assert_close(padded, model(tokens_BT), rtol=1e-4, atol=1e-4)


def check_samples(case: Case, model: Model) -> None:
    """Samples of a batch do not see each other at evaluation."""
    others = [
        torch.cat([mine[:1], other[1:]]) for mine, other in zip(case.batch, case.small.other(*case.batch), strict=True)
    ]
    with torch.no_grad():
        together, changed = model(*case.batch), model(*others)
        alone = model(*(tensor[:1] for tensor in case.batch))
    assert_same_bits(changed[0], together[0], Reason.CAUSAL)
    assert differ(changed[1:], together[1:])
    # Another shape may sum in another order: 4 blocks of fp32 sums over at most 88 terms of logits of order 1 to 10.
    torch.testing.assert_close(together[:1], alone, rtol=1e-4, atol=1e-4)


def check_bf16(case: Case, model: Model) -> None:
    """Finite and near fp32, and statistics stay in fp32. Last: it rounds the weights."""
    with torch.no_grad():
        exact = model.to(torch.bfloat16).float()(*case.batch)  # from the weights as bf16 holds them
    model.to(torch.bfloat16)
    logits = model(*(tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in case.batch))
    assert logits.dtype == torch.bfloat16
    case.small.loss(logits).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    for module in model.modules():
        if isinstance(module, BatchNorm):
            assert module.running_mean.dtype == module.running_var.dtype == torch.float32
    # A factor that is left out or cast to nothing changes the logits as a whole.
    assert (logits.float() - exact).norm() < case.small.bf16_error * exact.norm()


@pytest.mark.parametrize("case", CASES, ids=["-".join(case) for case in CASES])
def test_method(case, tmp_path):
    model = case.built()
    check_start(case, model)
    # Away from the start: a branch behind a zero (ReZero), or a matrix before one (LAuReL), has no gradient there.
    check_gradients(case, shaken(model))
    if case.command == "train-lm":
        check_causality(model, *case.batch)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = case.built(seed=9)
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    with torch.no_grad():
        assert_same_bits(other.eval()(*case.batch), model.eval()(*case.batch), Reason.SAVED)
    check_samples(case, model)
    check_bf16(case, model.train())


GATES = ("comt", "transponder", "transponder-path", "transponder-static", "full-rank-gate", "sdpa-gate")


@given(st.sampled_from(sorted(residual_connections())), st.sampled_from(GATES), st.integers(0, 10), st.integers(1, 60))
def test_any_gate_goes_with_any_residual_connection(residual, gate, position, shift):
    """Causal, and trained to its last gate, in whatever combination."""
    model = shaken(built(wiring_of({"name": gate, "residual": residual})))
    changed = TOKENS.clone()
    changed[:, position + 1 :] = (changed[:, position + 1 :] + shift) % VOCABULARY
    logits = model(TOKENS)
    assert_same_bits(model(changed)[:, : position + 1], logits[:, : position + 1], Reason.CAUSAL)
    loss_of_logits(logits).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert all(parameter.grad.any() for name, parameter in model.named_parameters() if ".gates." in name)


def test_the_checks_catch_a_gate_that_pools_over_the_sequence_and_statistics_of_the_batch():
    for site in PROJECTIONS:
        leaks = future_leaks(shaken(built(Wiring(PreNorm, {site: pooling_gate}))), TOKENS, VOCABULARY)
        # A query's gate at t = 0 is the one harmless place: the first token can only look at itself.
        assert leaks == list(range(11)) or (site in ("q_proj", "k_proj") and leaks == list(range(1, 11))), site
    case = Case("train-resnet", "basic", "addition")
    with pytest.raises(AssertionError):  # in training batch norm is allowed to mix, and does
        check_samples(case, shaken(case.built()))


def test_no_two_tensors_start_alike():
    model = built(wiring_of({"name": "transponder"}))
    weights = [weight for _, module in projections(model) for weight in module.site_weights().values()]
    weights += [each for name, each in model.named_parameters() if ".gates." in name and each.ndim == 2]
    assert len({weight.double().sum().item() for weight in weights}) == len(weights)


@pytest.mark.parametrize("case", [case for case in CASES if case.command == "train-resnet"], ids="-".join)
def test_maps_keep_their_layout_and_their_type(case):
    """In float64 channels-last equals contiguous, where only the order of sums differs, and maps with the channels last
    stay so, without a copy; under autocast maps are bf16, since a factor left in fp32 would double all behind it."""
    model, results, seen = shaken(case.built()), [], []
    for block in model.blocks:  # copies of a model keep its hooks
        block.register_forward_hook(
            lambda _, __, y: seen.append((y.is_contiguous(memory_format=torch.channels_last), y.dtype))
        )
    for memory_format in (torch.contiguous_format, torch.channels_last):
        twin = copy.deepcopy(model).double().to(memory_format=memory_format)
        seen.clear()
        case.loss(twin, [maps.double().to(memory_format=memory_format) for maps in case.batch]).backward()
        results.append({name: each.grad.contiguous() for name, each in twin.named_parameters()})
        results[-1] |= dict(twin.named_buffers())
    assert seen == [(True, torch.float64)] * len(model.blocks)
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        case.loss(model).backward()
    assert {dtype for _, dtype in seen} == {torch.bfloat16}
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# ---- options


def test_unknown_options_are_refused():
    for small in SMALL.values():
        for options in small.methods.values():
            with pytest.raises(ValidationError, match="unknown_option"):
                method_from({**options, "unknown_option": 1})
            with pytest.raises(ValidationError, match="frozen"):
                method_from(options).residual = "post-norm"  # type: ignore[attr-defined]
    with pytest.raises(KeyError):  # and never falls through
        method_from({"name": "lns"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "comt-sliding-window", "sites": "some"}, "no set of convolutions 'some'"),
        ({"name": "comt-sliding-window", "sites": ["norm1"]}, "conv1"),
        ({"name": "comt-pixel", "sites": ["norm1", "norm1"]}, "a site is named twice"),
        ({"name": "comt-pixel", "sites": []}, "at least 1"),
        ({"name": "sas-resnet", "norm": "batch", "norm_over": "pixel"}, "norm_over: needs norm: layer"),
        ({"name": "sas-resnet", "gamma_bias": 1.0}, "gamma_bias: needs gamma: free"),
        ({"name": "scaled", "scale": 0}, "greater than 0"),
        ({"name": "comt", "residual": "prenorm"}, "residual"),
        ({"name": "svformer", "residual": "mudd"}, "mudd makes inputs of values"),
        ({"name": "svformer", "residual": "deep-cross-attention"}, "deep-cross-attention makes inputs of values"),
        ({"name": "wider", "like": "comt-pixel"}, "no method 'comt-pixel'"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, said):
    with pytest.raises(ValidationError, match=said):
        method_from(options)


def test_sites_are_one_run_however_they_are_said_and_have_to_be_there():
    dumps = [
        method_from({"name": "comt-sliding-window", **sites}).model_dump()
        for sites in ({"sites": "all"}, {"sites": ["conv3", "conv1", "conv2"]}, {})
    ]
    assert dumps[0] == dumps[1] == dumps[2]
    with pytest.raises(UserError, match="the blocks of resnet18 have no conv3"):
        built_resnet({"name": "comt-sliding-window", "sites": ["conv1", "conv3"]})
    with pytest.raises(UserError, match="preact-resnet110 have no norm3"):
        built_resnet({"name": "comt-pixel", "sites": ["norm3"]}, ResNetSettings(size="preact-resnet110"))
    built_resnet({"name": "comt-sliding-window", "sites": ["conv3"]}, ResNetSettings(size="resnet50", blocks=(1,)))


@pytest.mark.parametrize("command", [command for command in SMALL if command != "train-lm"])
@pytest.mark.parametrize("name", ["resformer", "value-embeddings", "xsa"])
def test_models_refuse_a_change_of_attention_that_they_would_leave_out(name, command):
    small = SMALL[command]
    plain, changed = wiring_of({"name": task_of(command).plain_method}), wiring_of({"name": name})
    parts = {part: getattr(changed, part) for part in ("shared_values", "value_embedding", "exclude")}
    for settings in small.networks.values():
        with pytest.raises(UserError, match=f"cannot have {next(part for part in parts if parts[part])} of a wiring"):
            empty_network(settings, replace(plain, **parts), **small.dimensions)


def test_a_recipe_can_name_every_residual_connection_and_no_other():
    """Names are read without torch, and are those of the classes."""
    found = residual_connections()
    assert get_args(ResidualName) == tuple(found)
    kinds = {name: residual_connection(name) for name in found}
    assert len({*kinds.values()}) == len(kinds)
    assert {name: kind.name for name, kind in kinds.items()} == {name: name for name in found}


@pytest.mark.parametrize("name", residual_connections())
def test_a_connection_needs_what_it_does(name):
    """A model that offers less would silently drop it. Any model passes on LAuReL-PA's earlier inputs."""
    connections, _ = stack(name)
    state, needs = State(torch.ones(2, 3, D, dtype=torch.float64)), set()

    def of_inputs(k: int, h: Tensor, *kv: Tensor) -> Tensor:
        needs.update({"values"} if kv else ())
        return branch(k, h, *kv)

    for k, connection in enumerate(connections):
        state = connection.step(state, partial(of_inputs, k))
        follows_training = any(isinstance(part, FollowsTraining) for part in connection.modules())
        if follows_training or state.sources or state.has_streams or state.qkv:
            needs.add("states")
        if connection.norms_heads:
            needs.add("heads")
    if name == "laurel-pa":
        needs.discard("states")
    assert {*connections[0].needs} == {*residual_connections()[name].needs} == needs


def test_a_connection_is_for_the_same_models_as_a_method_and_as_anothers_residual():
    for command in SMALL:
        sites = task_of(command).sites
        found = {name: method_from({"name": "comt", "residual": name}).absent(sites) for name in residual_connections()}
        for method in methods().values():
            if issubclass(method, ConnectionMethod) and method.streams == (sites.stream,):
                assert method.fits(sites) == (found[method.connection] == {})
        assert all(problems.keys() <= {"residual"} for problems in found.values())


def test_a_method_is_for_the_models_whose_stream_and_sites_it_names():
    assert task_of("train-lm").sites == DECODER_SITES  # said again, below methods and models
    assert task_of("train-resnet").sites == MAP_SITES
    assert set(methods("train-lm")) & set(methods("train-resnet")) == {"highway", "rezero", "scaled"}
    assert "addition" not in methods("train-lm")
    assert all(methods()["rezero"].fits(Sites(stream, ())) for stream in ("tokens", "maps"))
    assert methods()["sdpa-gate"].fits(Sites("tokens", ("q_proj", "sdpa")))
    assert not methods()["sdpa-gate"].fits(Sites("tokens", ("q_proj",)))


def test_a_methods_file_says_its_paper_and_its_deviations():
    for method in methods().values():
        text = __import__(method.__module__, fromlist=["__doc__"]).__doc__
        assert "Deviations:" in text, method
        assert any(year in text for year in map(str, range(2015, 2030))), method
