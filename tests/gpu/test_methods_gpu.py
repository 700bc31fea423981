"""Every kind of method of both kinds of networks, generating, and many runs at once, on a GPU."""

from __future__ import annotations

import pytest
import torch
from decided import draw_with_a_margin
from image_method_cases import IMAGE_KINDS, IMAGE_METHODS, IMAGES, LABELS, built_resnet, every_network, image_loss
from initialised import shaken
from method_cases import KINDS, METHODS, TOKENS, built, loss_of, wiring_of
from tiny_runs import tiny_spec
from torch import Tensor

from comt_cli.campaign.executor import train_on
from comt_cli.campaign.queue import Ending
from comt_cli.generation.cached import Decoder, generate
from comt_cli.models.llama import Llama

PROMPTS = [row[:length].tolist() for row, length in zip(TOKENS, (5, 12, 1), strict=True)]
SHARES = 6


EVERY = (*KINDS, "smear")  # whose captured steps read the previous token


@pytest.mark.parametrize("names", [EVERY[share::SHARES] for share in range(SHARES)], ids=",".join)
def test_the_gpu_computes_what_the_cpu_does(names):
    """In fp32. Both sum the same numbers in other orders, over four blocks: some 1e-5 of them."""
    for name in names:
        cpu, gpu = (shaken(built(wiring_of(METHODS[name]))) for _ in range(2))
        gpu.to("cuda")
        assert_same_gradients(cpu, gpu, name)
        assert_same_decoding(cpu, gpu, name)


def assert_same_gradients(cpu: Llama, gpu: Llama, name: str) -> None:
    expected, found = cpu(TOKENS), gpu(TOKENS.to("cuda"))
    assert near(found, expected, 1e-4), name
    loss_of(cpu).backward()
    targets = TOKENS[:, 1:].reshape(-1).to("cuda")
    torch.nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), targets).backward()
    for (parameter, one), (_, other) in zip(cpu.named_parameters(), gpu.named_parameters(), strict=True):
        assert near(other.grad, one.grad, 1e-3), f"{name}: {parameter}"


def assert_same_decoding(cpu: Llama, gpu: Llama, name: str) -> None:
    """By captured steps, by single kernels and by the CPU; attention over other numbers of columns adds in another
    order."""
    decoders = [Decoder(cpu, 3, 24, graph=False), *(Decoder(gpu, 3, 24, graph=graph) for graph in (False, True))]
    for _ in range(2):  # a graph serves the next prompts too
        logits = [[decoder.prefill(PROMPTS).cpu()] for decoder in decoders]
        for step in range(8):
            for found, decoder in zip(logits, decoders, strict=True):
                found.append(decoder.step(TOKENS[:, step].to(decoder.device)).cpu())
        expected, *others = (torch.stack(found) for found in logits)
        for found in others:
            assert near(found, expected, 1e-4), name


def near(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((found.cpu() - expected).norm() <= tolerance * expected.norm() + 1e-7)


def test_workers_fill_the_gpu(tiny_corpus, tmp_path):
    specs = [tiny_spec(tiny_corpus, seed=seed, steps=4) for seed in (1, 2, 3)]
    summary = train_on(1, specs, tmp_path, "cuda", 2)
    assert [outcome.ending for outcome in summary.outcomes] == [Ending.done] * 3


@every_network
def test_the_gpu_computes_what_the_cpu_does_of_images(settings, monkeypatch):
    """Gradients and running statistics in fp32, with the channels last: the same numbers summed in other orders."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    images = IMAGES.to("cuda", memory_format=torch.channels_last)
    for method in IMAGE_KINDS:
        cpu, gpu = (shaken(built_resnet(IMAGE_METHODS[method], settings)) for _ in range(2))
        gpu.to("cuda", memory_format=torch.channels_last)
        image_loss(cpu).backward()
        torch.nn.functional.cross_entropy(gpu(images), LABELS.to("cuda")).backward()
        for (name, one), (_, other) in zip(cpu.named_parameters(), gpu.named_parameters(), strict=True):
            assert (other.grad.cpu() - one.grad).norm() <= 2e-3 * one.grad.norm() + 1e-6, f"{method}: {name}"
        for (name, one), (_, other) in zip(cpu.named_buffers(), gpu.named_buffers(), strict=True):
            assert (other.cpu() - one).norm() <= 1e-4 * one.norm(), f"{method}: {name}"
        with torch.no_grad():
            expected, found = cpu.eval()(IMAGES), gpu.eval()(images).cpu()
        assert (found - expected).norm() < 1e-3 * expected.norm(), method


def test_the_gpu_draws_what_the_cpu_draws():
    """The random numbers are the same; a draw could differ only where one falls within rounding of a boundary."""
    cpu, gpu = (shaken(built(wiring_of({"name": "comt"}))) for _ in range(2))
    gpu.to("cuda")
    options = {"max_new_tokens": 8, "temperature": 1.2, "top_p": 0.9, "seed": 3}
    with pytest.MonkeyPatch.context() as patch:
        draw_with_a_margin(patch)
        expected = list(generate(cpu, PROMPTS, **options))
    assert list(generate(gpu, PROMPTS, **options)) == expected
