"""Every kind of method of image classifiers on a GPU."""

from __future__ import annotations

import pytest
import torch
from image_method_cases import IMAGE_KINDS, IMAGE_METHODS, IMAGES, LABELS, built_resnet, every_network, image_loss
from initialised import shaken

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible"),
]


@every_network
def test_the_gpu_computes_what_the_cpu_does(settings, monkeypatch):
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
