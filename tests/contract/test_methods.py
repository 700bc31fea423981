"""The contract of every method: one set of tests over all tasks, and all methods that fit them, on small networks.

A method that is put into `comt_cli/methods/` is tested here without a line being added, on the first task that has it,
for what is a method's own: causality, gradients. How models are run is tested with one method for each kind of wiring.
What each method promises of its own, parameters and initial state, stands in `test_parameter_counts`,
`test_image_parameter_counts` and `test_initial_state`.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from connection_stacks import D, branch, stack
from hypothesis import given
from hypothesis import strategies as st
from image_method_cases import IMAGE_KINDS, built_resnet
from initialised import shaken
from method_cases import KINDS, TOKENS, VOCABULARY, built, loss_of_logits, projections, wiring_of
from pydantic import ValidationError
from same_bits import Reason, assert_same_bits, differ, same_bits
from small_networks import SMALL, Case, cases, plain_model
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.convolution import BatchNorm
from comt_cli.layers.gates import ComtGate, Gate
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.base import ResidualConnection, State
from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.layers.residual.progressive import FollowsTraining
from comt_cli.methods import method_from, methods
from comt_cli.methods.base import (
    DECODER_SITES,
    MAP_SITES,
    PROJECTIONS,
    ConnectionMethod,
    ResidualName,
    Wiring,
    residual_connection,
)
from comt_cli.methods.connections import residual_connections
from comt_cli.models.base import Model
from comt_cli.models.build import empty_network
from comt_cli.recipe.schema import Sites
from comt_cli.tasks import task_of, tasks
from comt_cli.tasks.settings.resnet import ResNetSettings


def test_every_task_and_every_method_is_here():
    assert SMALL.keys() == {task.command for task in tasks().values()}
    for command, small in SMALL.items():
        assert {options["name"] for options in small.methods.values()} == set(methods(command))


def computed_by(case: Case) -> set[type[nn.Module]]:
    """The classes of its gates, residual connections and norms; of one that only starts differently, its parent."""
    network = case.small.networks[case.network]
    model = empty_network(network, wiring_of(case.options), **case.small.dimensions)
    kinds = {type(module) for module in model.modules() if isinstance(module, Gate | ResidualConnection)}
    kinds |= {type(module) for module in model.modules() if "norm" in type(module).__module__}
    return {kind if "forward" in vars(kind) else kind.__mro__[1] for kind in kinds}


@pytest.mark.parametrize(("command", "kinds"), [("train-lm", KINDS), ("train-resnet", IMAGE_KINDS)])
def test_kinds_are_complete(command, kinds):
    """No class of gate, connection or norm is left out where a test computes with one method of each kind."""
    network = next(iter(SMALL[command].networks))
    found = {name: computed_by(Case(command, network, name)) for name in SMALL[command].methods}
    covered = set().union(*(found[name] for name in kinds))
    missing = {
        kind: [name for name, kinds in found.items() if kind in kinds]
        for kind in set().union(*found.values())
        if not any(issubclass(each, kind) for each in covered)
    }
    assert missing == {}


# ---- what a position and a sample may depend on


def future_leaks(model: Model, tokens_BT: Tensor) -> list[int]:
    """The positions whose logits change, by any bit, when a later token does.

    No tolerance: shapes stay equal, so the same instructions run on the same numbers.
    """
    with torch.no_grad():
        before = model(tokens_BT)
        leaks = []
        for t in range(tokens_BT.shape[1] - 1):
            changed = tokens_BT.clone()
            changed[:, t + 1 :] = (changed[:, t + 1 :] + 7) % VOCABULARY
            if not same_bits(model(changed)[:, : t + 1], before[:, : t + 1], Reason.CAUSAL):
                leaks.append(t)
    return leaks


@cases(every=True, causal=True)
def test_the_future_does_not_leak(case):
    model = case.shared()
    assert future_leaks(model, *case.batch) == []
    (tokens_BT,) = case.batch
    changed = tokens_BT.clone()
    changed[:, 5] = (changed[:, 5] + 1) % VOCABULARY
    with torch.no_grad():  # and the present does arrive
        assert differ(model(changed)[:, 5:], model(tokens_BT)[:, 5:])


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


@cases(causal=True)
def test_padding_on_the_right_changes_nothing(case):
    model, (tokens_BT,) = case.shared(), case.batch
    padded = F.pad(tokens_BT, (0, 5), value=0)
    with torch.no_grad():  # sums in another order, as below
        torch.testing.assert_close(model(padded)[:, :12], model(tokens_BT), rtol=1e-4, atol=1e-4)


@cases(networks=True)
def test_samples_of_a_batch_do_not_see_each_other_at_evaluation(case):
    model = case.shared().eval()
    others = [
        torch.cat([mine[:1], other[1:]]) for mine, other in zip(case.batch, case.small.other(case.batch), strict=True)
    ]
    with torch.no_grad():
        together, changed = model(*case.batch), model(*others)
        alone = model(*(tensor[:1] for tensor in case.batch))
    assert_same_bits(changed[0], together[0], Reason.CAUSAL)
    assert differ(changed[1:], together[1:])
    # Another shape may sum in another order: 4 blocks of fp32 sums over at most 88 terms of logits of order 1 to 10.
    torch.testing.assert_close(together[:1], alone, rtol=1e-4, atol=1e-4)


def test_the_independence_check_catches_statistics_of_the_batch():
    case = Case("train-resnet", "basic", "addition")
    model, (images,) = case.shaken(), case.batch  # in training batch norm is allowed to mix, and does
    others = torch.cat([images[:1], images[1:] * 2 - 1])
    with torch.no_grad():
        assert not torch.allclose(model(others)[0], model(images)[0], rtol=1e-3)


# ---- parameters


@cases(every=True)
def test_gradients_reach_every_parameter(case):
    # Away from the start: a branch behind a zero (ReZero), or a matrix before one (LAuReL), has no gradient there.
    model = case.shared()
    case.loss(model).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, Projections):
            for site, part in zip(owner.sites, parameter.grad.split([s.d_out for s in owner.sites]), strict=True):
                assert part.any(), (name, site.name)


@cases()
def test_one_seed_gives_every_method_the_same_network(case):
    """Runs of different methods with one seed are paired: what they share is equal bit for bit, up to a method's own
    scale (DeepNorm's beta). And every number is initialised."""
    plain, model = plain_model(case.command, case.network), case.built()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert tensor.isfinite().all(), name
    shared = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        if name not in shared:  # ReZero has no norms, DeepNorm no final one, a dropped gamma no weight
            assert name.endswith(("norm.weight", "norm.bias"))
        elif not isinstance(plain.get_submodule(name.rpartition(".")[0]), Projections):
            assert_same_bits(shared[name], parameter, Reason.SAME_CALL, name)
    model.requires_grad_(False)
    for (path, ours), (_, theirs) in zip(projections(model), projections(plain), strict=True):
        for site in ours.sites:
            one, other = ours.site_weights()[site.name], theirs.site_weights()[site.name]
            if case.options["name"] == "wider" and site.name in ("gate_proj", "up_proj", "down_proj"):
                assert (one.numel() > other.numel()) == ("of" not in case.options)
            else:
                torch.testing.assert_close(one / ours.std_of(site), other / theirs.std_of(site)), (path, site)
    again, different = case.built(), case.built(seed=2)
    assert_same_bits(dict(model.named_parameters()), dict(again.named_parameters()), Reason.SAME_CALL)
    assert all(
        differ(a, b)
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


@cases()
def test_save_and_load(case, tmp_path):
    model, other = case.shaken(), case.built(seed=9)
    case.loss(model)  # moves running statistics
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    with torch.no_grad():
        assert_same_bits(other.eval()(*case.batch), model.eval()(*case.batch), Reason.SAVED)


# ---- how it is computed


@cases()
def test_bf16_is_finite_and_near_fp32_and_statistics_stay_fp32(case):
    model = case.shaken().to(torch.bfloat16)
    with torch.no_grad():
        exact = model.float()(*case.batch)  # from the weights as bf16 holds them
    model.to(torch.bfloat16)
    batch = [tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in case.batch]
    logits = model(*batch)
    assert logits.dtype == torch.bfloat16
    loss = case.small.loss(logits)
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    for module in model.modules():
        if isinstance(module, BatchNorm):
            assert module.running_mean.dtype == module.running_var.dtype == torch.float32
    # A factor that is left out or cast to nothing changes the logits as a whole.
    assert (logits.float() - exact).norm() < case.small.bf16_error * exact.norm()


@cases()
def test_activation_checkpointing_changes_no_gradient(case):
    # Away from the start, where zeros would hide what is remembered (LAuReL-PA) and whole branches (ReZero).
    plain, saving = case.shaken(), case.shaken()
    saving.activation_checkpointing = True
    for model in (plain, saving):
        case.loss(model).backward()
    one, other = ({name: p.grad for name, p in model.named_parameters()} for model in (plain, saving))
    assert_same_bits(other, one, Reason.RECOMPUTED, "the gradients")
    assert_same_bits(dict(saving.named_buffers()), dict(plain.named_buffers()), Reason.RECOMPUTED)


@cases(networks=True, stream="maps")
def test_channels_last_equals_contiguous(case):
    """In float64, where only the order of sums differs; and maps with the channels last stay so, without a copy."""
    model = case.shaken().double()
    results, layouts = [], []
    for block in model.blocks:  # copies of a model keep its hooks
        block.register_forward_hook(lambda _, __, y: layouts.append(y.is_contiguous(memory_format=torch.channels_last)))
    for memory_format in (torch.contiguous_format, torch.channels_last):
        twin = copy.deepcopy(model).to(memory_format=memory_format)
        layouts.clear()
        case.loss(twin, [maps.double().to(memory_format=memory_format) for maps in case.batch]).backward()
        results.append(twin)
    assert layouts == [True] * len(model.blocks)
    for (name, one), (_, other) in zip(*(twin.named_parameters() for twin in results), strict=True):
        torch.testing.assert_close(one.grad, other.grad.contiguous(), rtol=1e-9, atol=1e-11, msg=name)
    for (name, one), (_, other) in zip(*(twin.named_buffers() for twin in results), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11, msg=name)


@cases(stream="maps")
def test_autocast_keeps_the_maps_in_bf16(case):
    """A factor left in fp32 would double what every map takes from there on."""
    model = case.shaken()
    types = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, y: types.append(y.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        case.loss(model).backward()
    assert types == [torch.bfloat16] * len(model.blocks)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


# ---- options


def test_unknown_options_are_refused():
    for small in SMALL.values():
        for options in small.methods.values():
            with pytest.raises(ValidationError, match="unknown_option"):
                method_from({**options, "unknown_option": 1})
            with pytest.raises(ValidationError, match="frozen"):
                method_from(options).residual = "post-norm"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "comt-sliding-window", "sites": "some"}, "give a list of conv1, conv2, conv3, or all"),
        ({"name": "comt-sliding-window", "sites": ["norm1"]}, "conv1"),
        ({"name": "comt-pixel", "sites": ["norm1", "norm1"]}, "a site stands twice"),
        ({"name": "comt-pixel", "sites": []}, "at least 1"),
        ({"name": "comt-pixel", "hidden": 0}, "greater than 0"),
        ({"name": "sas-resnet", "norm": "batch", "norm_over": "pixel"}, "norm_over: belongs to norm: layer"),
        ({"name": "sas-resnet", "gamma_bias": 1.0}, "gamma_bias: belongs to gamma: free"),
        ({"name": "scaled", "scale": 0}, "greater than 0"),
        ({"name": "scaled", "scale": "width"}, "depth"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, said):
    with pytest.raises(ValidationError, match=said):
        method_from(options)


def test_sites_are_one_run_however_they_are_said():
    spelt = {"all": "all", "a list": ["conv3", "conv1", "conv2"]}
    dumps = [method_from({"name": "comt-sliding-window", "sites": sites}).model_dump() for sites in spelt.values()]
    assert dumps == [method_from({"name": "comt-sliding-window"}).model_dump()] * 2


def test_a_site_that_the_blocks_do_not_have_is_refused():
    with pytest.raises(UserError, match="the blocks of resnet18 have no conv3"):
        built_resnet({"name": "comt-sliding-window", "sites": ["conv1", "conv3"]})
    with pytest.raises(UserError, match="preact-resnet110 have no norm3"):
        built_resnet({"name": "comt-pixel", "sites": ["norm3"]}, ResNetSettings(size="preact-resnet110"))
    built_resnet({"name": "comt-sliding-window", "sites": ["conv3"]}, ResNetSettings(size="resnet50", blocks=(1,)))


def test_an_unknown_method_raises_and_never_falls_through():
    with pytest.raises(KeyError):
        method_from({"name": "lns"})
    with pytest.raises(ValidationError, match="residual"):
        method_from({"name": "comt", "residual": "prenorm"})


def test_a_recipe_can_name_every_residual_connection_and_no_other():
    """Names are read without torch, and are those of the classes."""
    found = residual_connections()
    assert get_args(ResidualName) == tuple(found)
    kinds = {name: residual_connection(name) for name in found}
    assert len({*kinds.values()}) == len(kinds)
    assert all(issubclass(kind, ResidualConnection) for kind in kinds.values())
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
    if name == "laurel-pa":
        needs.discard("states")
    assert {*connections[0].needs} == {*residual_connections()[name].needs} == needs


@pytest.mark.parametrize("command", SMALL)
def test_a_connection_is_for_the_same_models_as_a_method_and_as_anothers_residual(command):
    sites = task_of(command).sites
    found = {name: method_from({"name": "comt", "residual": name}).absent(sites) for name in residual_connections()}
    for method in methods().values():
        if issubclass(method, ConnectionMethod) and method.streams == (sites.stream,):
            assert method.fits(sites) == (found[method.connection] == {})
    assert all(problems.keys() <= {"residual"} for problems in found.values())


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
    with pytest.raises(ValidationError, match="that could stand here is called 'comt-pixel'"):
        method_from({"name": "wider", "like": "comt-pixel"})


@pytest.mark.parametrize("name", methods())
def test_a_methods_file_says_its_paper_and_its_deviations(name):
    module = __import__(methods()[name].__module__, fromlist=["__doc__"])
    assert "Deviations:" in module.__doc__
    assert any(year in module.__doc__ for year in map(str, range(2015, 2030)))
