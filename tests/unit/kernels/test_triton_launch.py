"""A kernel is looked at by Triton once for what it may be compiled for, and launched directly from then on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import native_specialize_impl

from comt_cli.kernels.triton import launch
from comt_cli.kernels.triton.tiles import Tile


class Kernel:
    """Stands for a compiled function of Triton's: notes what it compiles, and what is launched of that."""

    arg_names = ("tensors", "size", "scale", "BT", "R")

    def __init__(self) -> None:
        self.compiled, self.launched = [], []

    def __getitem__(self, grid):
        run = SimpleNamespace(function="function", packed_metadata="metadata", run=lambda *a: self.launched.append(a))
        return lambda *_, **options: self.compiled.append(options) or run


def test_the_second_launch_bypasses_triton(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: "stream", raising=False)
    monkeypatch.setattr(launch, "_compiled", {})
    kernel, tile, (first, second) = Kernel(), Tile(16, 64, 1), ((torch.zeros(4, 4), None) for _ in range(2))
    launch.run(kernel, (3, 5), first, 48, 2.0, tile=tile, R=8)
    launch.run(kernel, (7,), second, 64, 1.5, tile=tile, R=8)  # other numbers of the same kind
    assert kernel.compiled == [{"BT": 16, "R": 8, "num_warps": 1, "num_stages": 1, "maxnreg": None}]
    assert kernel.launched == [(7, 1, 1, "stream", "function", "metadata", None, None, None, second, 64, 1.5, 16, 8)]
    for changed in ({"R": 4}, {"tile": Tile(16, 64, 2)}):
        launch.run(kernel, (3, 5), first, 48, 2.0, **{"tile": tile, "R": 8} | changed)
    assert len(kernel.compiled) == 3


NUMBERS = (0, 1, 2, 15, 16, 17, 32, 2**31 - 1, 2**31, 2**31 + 16, 1.5, None)
TENSORS = [torch.zeros(8, dtype=dtype)[start:] for dtype in (torch.float32, torch.bfloat16) for start in (0, 1, 4)]


def test_what_triton_tells_apart_has_another_key():
    """Of every kind of argument that kernels have: Triton's own function says what it compiles for."""
    told = {}
    for argument in (*NUMBERS, *TENSORS):
        what = native_specialize_impl(CUDABackend, argument, False, True, True)
        key: list[object] = []
        launch._look([argument], key)
        assert told.setdefault(tuple(key), what) == what
