"""The contract of every method of image classifiers: one set of tests over all that there are, found as the program
finds them. The counterpart of `test_methods`."""

from __future__ import annotations

import copy

import pytest
import torch
from image_method_cases import (
    IMAGES,
    built_resnet,
    every_image_method,
    every_network,
    image_loss,
    shaken_resnet,
)
from pydantic import ValidationError

from comt_cli.errors import UserError
from comt_cli.layers.convolution import BatchNorm
from comt_cli.methods import method_from
from comt_cli.tasks.settings.resnet import ResNetSettings


@every_image_method
@every_network
def test_images_of_a_batch_do_not_see_each_other_at_evaluation(options, settings):
    model = shaken_resnet(built_resnet(options, settings)).eval()
    others = IMAGES.clone()
    others[1:] = others[1:] * 2 - 1
    with torch.no_grad():
        together, alone = model(IMAGES), model(IMAGES[:1])
        changed = model(others)
    assert torch.equal(changed[0], together[0])
    assert not torch.equal(changed[1:], together[1:])
    torch.testing.assert_close(together[:1], alone, rtol=1e-4, atol=1e-4)  # another shape may sum in another order


def test_the_independence_check_catches_statistics_of_the_batch():
    model = shaken_resnet(built_resnet({"name": "addition"}))  # in training batch norm is allowed to mix, and does
    others = IMAGES.clone()
    others[1:] = others[1:] * 2 - 1
    with torch.no_grad():
        assert not torch.allclose(model(others)[0], model(IMAGES)[0], rtol=1e-3)


@every_image_method
@every_network
def test_gradients_reach_every_parameter(options, settings):
    model = shaken_resnet(built_resnet(options, settings))  # away from the start, where ReZero's branches have none
    image_loss(model).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@every_image_method
def test_every_number_is_initialised(options):
    model = built_resnet(options)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        assert tensor.isfinite().all(), name
    assert image_loss(model).isfinite()


@every_image_method
@every_network
def test_channels_last_equals_contiguous(options, settings):
    """In float64, where only the order of sums differs; and maps with the channels last stay so, without a copy."""
    model = shaken_resnet(built_resnet(options, settings)).double()
    results, layouts = [], []
    for block in model.blocks:  # copies of a model keep its hooks
        block.register_forward_hook(lambda _, __, y: layouts.append(y.is_contiguous(memory_format=torch.channels_last)))
    for memory_format in (torch.contiguous_format, torch.channels_last):
        twin = copy.deepcopy(model).to(memory_format=memory_format)
        layouts.clear()
        image_loss(twin, IMAGES.double().to(memory_format=memory_format)).backward()
        results.append(twin)
    assert layouts == [True] * len(model.blocks)
    for (name, one), (_, other) in zip(*(twin.named_parameters() for twin in results), strict=True):
        torch.testing.assert_close(one.grad, other.grad.contiguous(), rtol=1e-9, atol=1e-11, msg=name)
    for (name, one), (_, other) in zip(*(twin.named_buffers() for twin in results), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11, msg=name)


@every_image_method
def test_one_seed_gives_every_method_the_same_network(options):
    plain = dict(built_resnet({"name": "addition"}).named_parameters())
    model = built_resnet(options)
    shared = dict(model.named_parameters())
    for name, parameter in plain.items():
        if name not in shared:
            assert options.get("gamma") == "dropped"
            assert name.endswith("norm.weight")
        else:
            assert torch.equal(shared[name], parameter), name
    again, different = built_resnet(options), built_resnet(options, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert not any(
        torch.equal(a, b)
        for a, b in zip(model.parameters(), different.parameters(), strict=True)
        if a.unique().numel() > 1  # what starts as fixed numbers has nothing to draw
    )


@every_image_method
def test_save_and_load(options, tmp_path):
    model, other = shaken_resnet(built_resnet(options)), built_resnet(options, seed=9)
    image_loss(model)  # moves the running statistics
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    with torch.no_grad():
        assert torch.equal(model.eval()(IMAGES), other.eval()(IMAGES))


@every_image_method
@every_network
def test_bf16_is_finite_and_near_fp32_and_its_statistics_stay_fp32(options, settings):
    model = shaken_resnet(built_resnet(options, settings)).to(torch.bfloat16)
    exact = copy.deepcopy(model).float()
    logits = model(IMAGES.bfloat16())
    assert logits.dtype == torch.bfloat16
    image_loss(model, IMAGES.bfloat16()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    for module in model.modules():
        if isinstance(module, BatchNorm):
            assert module.running_mean.dtype == module.running_var.dtype == torch.float32
    # Eight bits of mantissa along two blocks; the norms divide by what three images of few pixels vary.
    assert (logits.float() - exact(IMAGES)).norm() < 0.1 * exact(IMAGES).norm()


@every_image_method
def test_autocast_keeps_the_maps_in_bf16(options):
    """A factor left in fp32 would double what every map takes from there on."""
    model = shaken_resnet(built_resnet(options))
    types = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, y: types.append(y.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        image_loss(model).backward()
    assert types == [torch.bfloat16] * len(model.blocks)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@every_image_method
def test_unknown_options_are_refused(options):
    with pytest.raises(ValidationError, match="unknown_option"):
        method_from({**options, "unknown_option": 1})


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
