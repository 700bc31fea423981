"""A kernel is looked at by Triton once for what it may be compiled for, and launched directly from then on."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import native_specialize_impl

from comt_cli.kernels.triton import launch

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
