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
        self.compiled: list[tuple[object, ...]] = []
        self.launched: list[tuple[object, ...]] = []

    def __getitem__(self, grid):
        def compile_and_launch(*arguments, **options):
            self.compiled.append((grid, arguments, options))
            return SimpleNamespace(function="function", packed_metadata="metadata", run=self.launch)

        return compile_and_launch

    def launch(self, *arguments):
        self.launched.append(arguments)


@pytest.fixture
def kernel(monkeypatch) -> Kernel:
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: "stream", raising=False)
    monkeypatch.setattr(launch, "_compiled", {})
    return Kernel()


TILE = Tile(16, 64, 1)


def call(kernel, tensors, size, scale=2.0, tile=TILE, R=8, grid=(3, 5)):
    launch.run(kernel, grid, tensors, size, scale, tile=tile, R=R)


def test_the_second_launch_bypasses_triton(kernel):
    first, second = ((torch.zeros(4, 4), None) for _ in range(2))
    call(kernel, first, 48)
    call(kernel, second, 64, scale=1.5, grid=(7,))  # other numbers of the same kind
    assert [options for *_, options in kernel.compiled] == [
        {"BT": 16, "R": 8, "num_warps": 1, "num_stages": 1, "maxnreg": None}
    ]
    assert kernel.launched == [(7, 1, 1, "stream", "function", "metadata", None, None, None, second, 64, 1.5, 16, 8)]


@pytest.mark.parametrize(
    "changed",
    [
        {"tensors": (torch.zeros(4, 4, dtype=torch.bfloat16), None)},
        {"tensors": (torch.zeros(17)[1:], None)},  # 4 bytes behind a multiple of 16
        {"tensors": (torch.zeros(4, 4), torch.zeros(1))},
        {"size": 1},
        {"size": 47},
        {"size": 2**31 + 16},
        {"tile": Tile(16, 64, 2)},
        {"R": 4},
    ],
    ids=str,
)
def test_what_it_is_compiled_for(kernel, changed):
    given = {"tensors": (torch.zeros(4, 4), None), "size": 48}
    call(kernel, **given)
    call(kernel, **given | changed)
    assert len(kernel.compiled) == 2
    assert kernel.launched == []


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
